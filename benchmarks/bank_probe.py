"""The bank model against the profiler, access by access: one warp, one access, its addresses given.

    python -m benchmarks.bank_probe --out FILE.json [--seconds 120] [--commit COMMIT]

Nsight Compute counts every probe once; the file has the form of ``counters.py``'s. What is printed says how many probes
each variant of the model has right, and where it is wrong: what to change in ``tirgemm/analysis/banks/wavefronts.py``,
if anything. ``--log FILE`` takes the counts from an earlier run's log of the profiler.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.counted import ncu
from benchmarks.counted.metrics import base_names, chosen, compared, value
from tirgemm.analysis.banks.shared_access import WARP, SharedAccess
from tirgemm.analysis.banks.wavefronts import MODELS, BankModel, analyze
from tirgemm.bench.results import Document, dump, environment, figures_document, measured_at
from tirgemm.detect import device as detect_device
from tirgemm.errors import MeasurementFailed
from tirgemm.hardware import ARCHITECTURES
from tirgemm.layouts import Layout, TiledCopy
from verification import command

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(__file__).with_suffix(".cu")
REPEATS = 64
MEMORY_BYTES = 1 << 20
Integers = NDArray[np.int64]

_NAMES = {
    "load": ("shared_loads", "shared_load_wavefronts", "shared_load_conflicts"),
    "store": ("shared_stores", "shared_store_wavefronts", "shared_store_conflicts"),
    "stmatrix": ("matrix_stores", "matrix_store_wavefronts", "matrix_store_conflicts"),
    "ldmatrix": ("matrix_loads", "matrix_load_wavefronts", "matrix_load_conflicts"),
    "cp.async": ("copies", "copy_wavefronts", "copy_conflicts"),
}


@dataclass(frozen=True, eq=False)
class ProbedAccess:
    """An access of one warp. ``kernel`` of bank_probe.cu makes it; ``sources``: where cp.async reads, in bytes."""

    name: str
    kernel: str
    access: SharedAccess
    addresses: Integers
    mask: int = 0xFFFFFFFF
    sources: Integers | None = None

    def counts(self, model: BankModel) -> dict[str, float]:
        """What ``model`` predicts of the launch, by counter."""
        active = [bool(self.mask >> lane & 1) for lane in range(32)]
        report = analyze(self.addresses, self.access, active, model, self.sources)
        requests, wavefronts, conflicts = _NAMES[self.access.operation]
        counts: dict[str, float] = {requests: REPEATS, conflicts: REPEATS * report.total_conflicts}
        if model.tells(self.access):
            counts[wavefronts] = REPEATS * report.total_wavefronts
        return counts


def variants(model: BankModel) -> dict[str, BankModel]:
    """The model, and others that public sources leave possible."""
    return {
        "the model": model,
        "cp.async as a store": replace(model, copies="as stores"),
        "pairs of the whole warp": replace(model, pairing_lanes=WARP),
        "without pairs": replace(model, pairings=()),
        "pairs of 128 bits alone": replace(model, paired_widths=(16,)),
    }


def probes(arch: str) -> tuple[ProbedAccess, ...]:
    """Every probe that ``arch`` has the instructions for."""
    lanes = np.arange(32, dtype=np.int64)
    halves = np.where(lanes < 16, lanes // 2, 8 + lanes % 16 // 4 * 2 + lanes % 2)
    accesses = []
    for bits in (8, 16, 32, 64, 128):
        width = bits // 8
        for name, units in {
            "in a row": lanes,
            "every second": lanes * 2,
            "all one": lanes * 0,
            "pairs n^1": lanes // 2,
            "pairs n^2": lanes // 4 * 2 + lanes % 2,
            "pairs n^4": lanes // 8 * 4 + lanes % 4,
            "fours": lanes // 4,
            "half n^1, half n^2": halves,
            "one bank": lanes * (128 // width),
            "backwards": 31 - lanes,
        }.items():
            for operation in ("load", "store"):
                access = SharedAccess(operation, width)
                accesses.append(ProbedAccess(f"{access} {name}", f"{operation}_{bits}", access, units * width))
    wide = SharedAccess("load", 16)
    for name, mask in {
        "lanes 0-7": 0xFF,
        "even lanes": 0x55555555,
        "lanes 15 16": 0x18000,
        "lanes 0 15": 0x8001,
    }.items():
        accesses.append(ProbedAccess(f"{wide} in a row, {name}", "load_128", wide, lanes * 16, mask))
        accesses.append(ProbedAccess(f"{wide} pairs n^1, {name}", "load_128", wide, lanes // 2 * 16, mask))
    return (*accesses, *_matrices(lanes, arch), *_copies(lanes))


def _matrices(lanes: Integers, arch: str) -> list[ProbedAccess]:
    accesses = []
    pitches = {"in a row": 16, "rows of 64 bytes": 64, "rows of 80 bytes": 80, "rows of 128 bytes": 128, "all one": 0}
    operations = [("ldmatrix", n, t) for n in (1, 2, 4) for t in ("", ".trans")]
    operations += [("stmatrix", 4, t) for t in ("", ".trans")] if ARCHITECTURES[arch].capability >= (9, 0) else []
    for operation, count, transposed in operations:
        access = SharedAccess.parse(f"{operation}.x{count}{transposed}")
        for name, pitch in pitches.items():
            kernel = f"{operation}_x{count}{transposed.replace('.', '_')}"
            accesses.append(ProbedAccess(f"{access} {name}", kernel, access, lanes * pitch))
    return accesses


def _copies(lanes: Integers) -> list[ProbedAccess]:
    """cp.async of tiles of fp16 with 4096 elements a row in memory, by whole lines and half lines; the forum's copy."""
    row_bytes, accesses = 8192, []
    for columns, name in ((64, "whole lines"), (32, "half lines"), (16, "quarter lines")):
        at = TiledCopy.row_major(32, columns, 8).requests(32 * 8 // columns, columns, 8)[0]
        rows, first = at[:, 0], at[:, 1]
        sources = rows * row_bytes + first * 2
        height = max(8, int(rows.max()) + 1)
        layouts = {
            "plain": Layout.plain(height, columns, 2),
            "8 halves padded": Layout.padded(height, columns, 2, 8),
            "permuted": Layout.tma(height, columns, 2, 2 * columns),
        }
        for kind, layout in layouts.items():
            for kernel, through_l1 in (("copy_16", False), ("copy_l1_16", True)):
                access = SharedAccess("cp.async", 16, through_l1=through_l1)
                label = f"{access} {name}, {kind}"
                accesses.append(ProbedAccess(label, kernel, access, layout.byte_offset(rows, first), sources=sources))
    for width in (4, 8, 16):
        access = SharedAccess("cp.async", width)
        for name, sources in {
            "in a row": lanes * width,
            "halves apart": lanes % 16 * 2 * width + lanes // 16 * width,
            "scattered": lanes * 512,
            "all one": lanes * 0,
        }.items():
            accesses.append(
                ProbedAccess(f"{access} read {name}", f"copy_{width}", access, lanes * width, sources=sources)
            )
        accesses.append(ProbedAccess(f"{access} one bank", f"copy_{width}", access, lanes * 128, sources=lanes * width))
    return accesses


def launch(device: str | None) -> None:
    """Launch every probe once, in order: what runs under the profiler."""
    from tirgemm.tuning.driver.cuda import Gpu, Memory, Module
    from tirgemm.tuning.process.child_rpc import without_torch

    without_torch()
    target = detect_device(device)
    gpu = Gpu(target)
    module, memory = Module(SOURCE, target.arch), Memory(MEMORY_BYTES)
    for probe in probes(target.arch):
        sources = np.zeros(32, dtype=np.int64) if probe.sources is None else probe.sources
        arrays = [np.ascontiguousarray(each, dtype=np.int32) for each in (probe.addresses, sources)]
        places = [Memory(array.nbytes) for array in arrays]
        for place, array in zip(places, arrays, strict=True):
            gpu.to_device(place.address, array)
        pointers = [ctypes.c_void_p(place.address) for place in places]
        arguments = (*pointers, ctypes.c_uint32(probe.mask), ctypes.c_void_p(memory.address), ctypes.c_uint32(0))
        module.launch(gpu.stream, probe.kernel, 1, 32, *arguments)
        gpu.synchronize()


def documented(
    wanted: Sequence[ProbedAccess], launches: Sequence[ncu.ProfiledLaunch], model: BankModel, about: dict[str, Any]
) -> tuple[Document, list[str]]:
    """The results file, and in words what it says of each variant of the model.

    Raises MeasurementFailed where the profiler saw other launches than were made.
    """
    if [launch.kernel for launch in launches] != [probe.kernel for probe in wanted]:
        raise MeasurementFailed(
            f"the profiler saw {len(launches)} launches, not the {len(wanted)} probes in their order"
        )
    metrics = chosen({base for launch in launches for name in launch.metrics for base in base_names(name)})
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in variants(model)}
    for probe, launch in zip(wanted, launches, strict=True):
        counted = {n: v for n, m in metrics.items() if (v := value(m, launch.metrics)) is not None}
        counted = {name: count for name, count in counted.items() if name in _NAMES[probe.access.operation]}
        for name, variant in variants(model).items():
            rows[name] += compared(probe.name, probe.counts(variant), counted, metrics)
    lines = []
    for name, compared_rows in rows.items():
        judged = [row for row in compared_rows if "right" in row]
        lines.append(f"{name}: {sum(bool(row['right']) for row in judged)} of {len(judged)} right")
    lines += [
        f"wrong: {row['kernel']}, {row['counter']}: predicted {row['predicted']}, counted {row['counted']}"
        for row in rows["the model"]
        if row.get("right") is False
    ]
    origin = measured_at(about, hashlib.sha256(SOURCE.read_bytes()).hexdigest(), about.get("date"))
    cases = [{"name": probe.name, "access": str(probe.access), "status": "counted"} | origin for probe in wanted]
    return figures_document("counters", about, rows["the model"], "banks", metrics=metrics, cases=cases), lines


def main() -> int:
    options = _options()
    if options.launch:
        launch(options.device)
        return 0
    device = detect_device(options.device)
    wanted = probes(device.arch)
    if options.log:
        launches = ncu.read(options.log.read_text(errors="replace"))
    else:
        metrics = sorted({p for m in chosen(ncu.available(device.arch)).values() for p in m.split("+")})
        command = [sys.executable, "-m", "benchmarks.bank_probe", "--launch", "--out", str(options.out)]
        command += ["--device", options.device] if options.device else []
        log = options.out.with_suffix(".ncu.csv")
        _, launches = ncu.profile(command, metrics, log, options.seconds)
    document, lines = documented(wanted, launches, MODELS[device.arch], environment(device, ROOT, options.commit))
    options.out.write_text(dump(document))
    print("\n".join(lines))
    return 0


def _options() -> argparse.Namespace:
    made = command.parser(__doc__, "--commit", "--out")
    made.add_argument("--device", default=None, help="cuda:0, or an architecture with --log (default: the first GPU)")
    made.add_argument("--seconds", type=float, default=120.0, help="stop the profiler after so many")
    made.add_argument("--log", type=Path, help="an earlier run's log of the profiler, over the same probes")
    made.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
