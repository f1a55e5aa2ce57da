"""TFLOP/s of mma.sync.m16n8k16 out of registers alone, on every SM: the ceiling of kernels that are built on it.

    python benchmarks/mma_ceiling.py --out benchmarks/results/nvidia-h200/mma_ceiling.json

For fp16 with fp32 and fp16 sums and for bf16, with 4 to 16 warps an SM. ``sustained``: launches back to back until the
clocks have settled, then sampled; ``isolated``: single launches of a millisecond between pauses. With ``--device
sm_90a`` (or another architecture) the kernels are only compiled, and what ptxas gave them is printed.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.tables import differing
from tirgemm.bench.results import dump, environment, measured_at
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.tuning.driver.nvrtc import Cubin, compile_source
from verification import command

HERE = Path(__file__).resolve().parent
SUITE = "mma_ceiling"
SOURCE = HERE / "mma_ceiling.cu"
SYMBOL = "mma_ceiling"
# What is multiplied and added up -> the preprocessor's words.
KINDS: dict[str, tuple[str, ...]] = {"f16": (), "bf16": ("-DBF16",), "f16:acc=f16": ("-DHALF_SUMS",)}
WARPS = (4, 8, 16)
# Floating-point operations of an instruction.
FLOPS = 2 * 16 * 8 * 16
# 32-bit words of operands of a thread: four fragments of A, eight of B.
WORDS = 4 * 4 + 8 * 2
SAMPLES = 40
_TURNS_SUSTAINED, _TURNS_ISOLATED = 60_000, 3_000
_SETTLE_S, _PAUSE_S = 1.5, 0.05


def main() -> int:
    parser = command.parser(__doc__, "--device", "--commit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = detect_device(options.device)
    if not device.present:
        for kind, warps in itertools.product(KINDS, WARPS):
            print(f"{kind:12} {warps:2} warps  {compiled(kind, warps, device.arch).resources[SYMBOL]}")
        return 0
    if options.out is None:
        parser.error("--out is where the figures go")
    about = environment(device, HERE.parent, options.commit)
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    rows = [row | measured_at(about, source) for row in measured(device)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        dump({"format": 1, "suite": SUITE, "regime": "both", "environment": about, "rows": rows, "summary": best(rows)})
    )
    for row in rows:
        print(f"{row['kind']:12} {row['warps']:2} warps  {row['regime']:9} {row['tflops']:7.1f} TFLOP/s")
    return 0


def compiled(kind: str, warps: int, arch: str) -> Cubin:
    """The cubin of one kind with so many warps a block; nothing may spill."""
    cubin = compile_source(SOURCE.read_text(), arch, options=(f"-DWARPS={warps}", *KINDS[kind]), name=SOURCE.name)
    assert cubin.resources[SYMBOL].spill_bytes == 0, f"{kind} with {warps} warps spills"
    return cubin


def instructions(warps: int) -> int:
    """Instructions of a warp in a turn of the loop."""
    return 2 * 4 * (4 if warps > 8 else 8)


def measured(device: Device) -> Iterator[dict[str, Any]]:
    """One row for every kind, number of warps and regime. Needs the GPU."""
    from tirgemm.tuning.driver.cuda import Gpu, Memory, call
    from tirgemm.tuning.driver.nvml import Probe

    gpu = Gpu(device)
    for kind, warps in itertools.product(KINDS, WARPS):
        threads = warps * 32
        module = call("cuModuleLoadData", compiled(kind, warps, device.arch).data)
        function = call("cuModuleGetFunction", module, SYMBOL.encode())
        operands, sink = Memory(4 * WORDS * threads), Memory(4 * threads * device.units)
        gpu.to_device(operands.address, random_operands(kind, WORDS * threads))

        def launch(turns: int, function: Any = function, threads: int = threads, at: Any = (operands, sink)) -> None:
            arguments = (ctypes.c_void_p(at[0].address), ctypes.c_uint64(turns), ctypes.c_void_p(at[1].address))
            pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(a) for a in arguments))
            address = ctypes.addressof(pointers)
            call("cuLaunchKernel", function, device.units, 1, 1, threads, 1, 1, 0, gpu.stream, address, 0)

        for regime, turns in (("sustained", _TURNS_SUSTAINED), ("isolated", _TURNS_ISOLATED)):
            turns = max(1, turns * 4 // warps)
            probe = Probe(device.uuid)
            samples: list[float] = []
            deadline = time.monotonic() + (_SETTLE_S if regime == "sustained" else 0.0)
            events = (gpu.event(), gpu.event())
            while len(samples) < SAMPLES:
                if regime == "isolated":
                    time.sleep(_PAUSE_S)
                gpu.record(events[0])
                launch(turns)
                gpu.record(events[1])
                probe.sample()
                took = gpu.microseconds(*events)
                if time.monotonic() >= deadline:
                    samples.append(round(took, 3))
            flops = turns * instructions(warps) * FLOPS * warps * device.units
            yield row(kind, warps, regime, turns, samples, flops) | probe.summary()
        call("cuModuleUnload", module)


def row(kind: str, warps: int, regime: str, turns: int, samples: list[float], flops: int) -> dict[str, Any]:
    median = statistics.median(samples)
    return {
        "kind": kind,
        "warps": warps,
        "regime": regime,
        "turns": turns,
        "flops": flops,
        "samples_us": samples,
        "median_us": median,
        "tflops": flops / median * 1e-6,
    }


def best(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By kind and regime: the most that any number of warps reached."""
    by_kind: dict[str, dict[str, float]] = {}
    for entry in rows:
        of = by_kind.setdefault(entry["kind"], {})
        of[entry["regime"]] = max(entry["tflops"], of.get(entry["regime"], 0.0))
    return by_kind


def faults(document: dict[str, Any]) -> Iterator[str]:
    """Every sentence that is wrong about a file of this script."""
    for entry in document["rows"]:
        again = row(*(entry[name] for name in ("kind", "warps", "regime", "turns", "samples_us", "flops")))
        for sentence in differing(entry, {name: again[name] for name in ("median_us", "tflops")}):
            yield f"{entry['kind']}, {entry['warps']} warps: {sentence}"
    wanted = set(itertools.product(KINDS, WARPS, ("sustained", "isolated")))
    missing = wanted - {(entry["kind"], entry["warps"], entry["regime"]) for entry in document["rows"]}
    for kind, warps, regime in sorted(missing):
        yield f"it has no row for {kind}, {warps} warps, {regime}"
    if document["summary"] != best(document["rows"]):
        yield "its summary is not what its rows give"


def random_operands(kind: str, count: int) -> Any:
    """Pairs of random normal numbers as 32-bit words."""
    import numpy as np

    values = np.random.default_rng(7).standard_normal(2 * count).astype(np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else values.astype(np.float16)
    return halves.view(np.uint32)


if __name__ == "__main__":
    sys.exit(main())
