"""Counters of memory traffic, L2 traffic and use of the tensor cores, of our kernels and of PyTorch's.

    python -m benchmarks.counted.traffic benchmarks/results/nvidia-h200/holes.sustained.json.gz --out FILE

Of every problem of a results file the kernel of one variant is built again and profiled once by Nsight Compute, and
once what ``torch.matmul`` launches. Caches are empty then, and clocks as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.counted import ncu
from benchmarks.counted.cases import CountedCase
from benchmarks.counted.metrics import base_names
from benchmarks.counted.ncu import ProfiledLaunch
from benchmarks.counted.profiling import GROUP_SECONDS, count, prepared
from benchmarks.counted.torch_calls import MARK_NAME
from tirgemm.bench.results import Document, dump, environment, figures_document, load, measured_at
from tirgemm.detect import device as detect_device
from tirgemm.errors import MeasurementFailed, Unsupported
from tirgemm.gemm import Gemm
from verification import command

ROOT = Path(__file__).resolve().parents[2]
SUITE = "traffic"
OURS, PYTORCH = "tirgemm", "torch.matmul"
# The status of a library's kernels, whose source is not ours.
LIBRARY = "library"
TIME = "gpu__time_duration.sum"
# Sums over the launches of a call, in bytes, and shares of a peak, in percent, which are means by time. The first
# metric that the profiler has is taken.
BYTES: Mapping[str, tuple[str, ...]] = {
    "memory_read": ("dram__bytes_read.sum",),
    "memory_written": ("dram__bytes_write.sum",),
    "l2_to_sms": ("l1tex__m_xbar2l1tex_read_bytes.sum",),
    "sms_to_l2": ("l1tex__m_l1tex2xbar_write_bytes.sum",),
}
SHARES: Mapping[str, tuple[str, ...]] = {
    "memory_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_percent": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    "tensor_percent": (
        "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    "sms_active_percent": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",),
}


def main() -> int:
    options = _options()
    deadline = time.monotonic() + options.seconds
    device = detect_device(options.device)
    about = environment(device, ROOT, options.commit)
    metrics = chosen(ncu.available(device.arch))
    asked = [TIME, *metrics.values()]
    kernels = prepared([(case, device, None, None) for case in cases(load(options.results), options.variant)])
    logs = options.out.parent / "traffic.ncu"
    logs.parent.mkdir(parents=True, exist_ok=True)
    count(kernels, device, asked, logs, deadline)
    rows: list[dict[str, Any]] = []

    def described() -> Document:
        more = {"of": options.results.name, "variant": options.variant, "metrics": metrics}
        return figures_document(SUITE, about, rows, "profiled", **more)

    for kernel in kernels:
        if kernel.message or kernel.binary is None:
            print(f"{kernel.case.name}: {kernel.message}", flush=True)
            continue
        symbols = [launch.symbol for launch in kernel.binary.launch.kernels]
        figures = row(kernel.case.gemm, symbols, kernel.counts, metrics)
        origin = measured_at(about, kernel.binary.source_sha256)
        rows.append({"contender": OURS, "config": kernel.config, **figures, **origin})
    options.out.write_text(dump(described()))
    gemms = [str(kernel.case.gemm) for kernel in kernels]
    program = [sys.executable, "-m", "benchmarks.counted.torch_calls", device.uuid, *gemms]
    log = logs.with_name("traffic.torch.csv")
    _, launches = ncu.profile(program, asked, log, max(GROUP_SECONDS, deadline - time.monotonic()))
    for gemm, calls in zip(gemms, by_product(launches, len(gemms)), strict=True):
        counts = [launch.metrics for launch in calls]
        made = row(Gemm.parse(gemm), [launch.kernel for launch in calls], counts, metrics)
        rows.append({"contender": PYTORCH, "status": LIBRARY, **made, **measured_at(about, None)})
    options.out.write_text(dump(described()))
    return int(any(kernel.message for kernel in kernels))


def cases(document: Document, variant: str) -> list[CountedCase]:
    """The measured kernels of ``variant`` in a results file, named by their problems. Raises Unsupported for a problem
    that is not ``a @ b.T`` of dense matrices alone, which is what PyTorch is asked for."""
    measured = [row for row in document["rows"] if row["variant"] == variant and row["status"] == "measured"]
    gemms = [Gemm.parse(row["gemm"]) for row in measured]
    for gemm in gemms:
        if gemm != Gemm(gemm.m_max, gemm.n, gemm.k, dtype=gemm.dtype, layout="nt"):
            plain = f"{gemm.m_max}x{gemm.n}x{gemm.k}:{gemm.dtype}:nt"
            raise Unsupported(f"{gemm} is more than {plain}, which is all that can be counted")
    return [
        CountedCase(str(gemm).replace(":", "."), gemm, row["family"], knobs=tuple(row["config"]["knobs"].items()))
        for gemm, row in zip(gemms, measured, strict=True)
    ]


def chosen(available: frozenset[str]) -> dict[str, str]:
    """Of each quantity the first metric that the profiler has."""
    metrics: dict[str, str] = {}
    for name, known in {**BYTES, **SHARES}.items():
        metric = next((metric for metric in known if base_names(metric)[0] in available), None)
        metrics |= {name: metric} if metric else {}
    return metrics


def by_product(launches: Sequence[ProfiledLaunch], products: int) -> list[list[ProfiledLaunch]]:
    """The launches of each product: those behind each mark. Raises MeasurementFailed where a product has none."""
    groups: list[list[ProfiledLaunch]] = []
    for launch in launches:
        if MARK_NAME in launch.kernel:
            groups.append([])
        elif groups:
            groups[-1].append(launch)
    if len(groups) != products or not all(groups):
        seen = [len(group) for group in groups]
        raise MeasurementFailed(f"the profiler saw {seen} kernels of PyTorch's, where there are {products} products")
    return groups


def row(
    gemm: Gemm, symbols: Sequence[str], counts: Sequence[Mapping[str, float]], metrics: Mapping[str, str]
) -> dict[str, Any]:
    """The figures of one call: its time in us, its bytes, its shares of peaks."""
    times = [launch[TIME] for launch in counts]
    figures = {"us": sum(times) / 1e3}
    for name, metric in metrics.items():
        values = [launch.get(metric) for launch in counts]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            weights = times if name in SHARES else [1.0] * len(times)
            total = sum(value * weight for value, weight in zip(known, weights, strict=True))
            figures[name] = total / sum(times) if name in SHARES else total
    return {"gemm": str(gemm), "kernels": list(symbols), **figures}


def faults(document: Document) -> Iterator[str]:
    """What is wrong with a file: problems without both contenders, and shares that no peak allows."""
    of: dict[str, set[str]] = {}
    for counted in document["rows"]:
        of.setdefault(counted["gemm"], set()).add(counted["contender"])
        where = f"{counted['gemm']}, {counted['contender']}"
        strange = [name for name in SHARES if not 0 <= counted.get(name, 0.0) <= 100]
        if strange:
            yield f"{where}: {strange[0]} is {counted[strange[0]]}"
        if not counted["us"] > 0:
            yield f"{where}: it takes {counted['us']} us"
    for gemm, contenders in of.items():
        if contenders != {OURS, PYTORCH}:
            yield f"{gemm}: only {', '.join(sorted(contenders))} was counted"


def _options() -> argparse.Namespace:
    made = command.parser(__doc__, "--device", "--commit", "--out")
    made.add_argument("results", type=Path, help="the results file whose kernels are counted")
    made.add_argument("--variant", default="quick", help="which of its kernels (default: quick)")
    made.add_argument("--seconds", type=float, default=400.0, help="begin no kernel of ours after so many")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(command.run(main))
