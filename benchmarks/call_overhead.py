"""Microseconds a call from Python, on PyTorch CUDA tensors, of a kernel so small that the host is all that counts.

    python benchmarks/call_overhead.py --out benchmarks/results/nvidia-h200/calls.json

Ways: ``raw`` (the launcher's function), ``raw_set`` (that of a set of eight kernels, of which the last but one runs),
``kernel_out`` (``Kernel.__call__`` with ``out=``), ``kernel`` (allocating),
``torch_op`` (through ``tirgemm.torch``) and ``torch.matmul`` with ``out=``. They alternate in blocks of calls that are
queued without waiting; a sample is one block's time over its calls, from a synchronised start to the last call's
return.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from timeit import Timer
from typing import Any

import tirgemm.torch as tirgemm_torch
from tirgemm.artifact import Signer, Trust, load
from tirgemm.bench.results import dump, environment, measured_at
from tirgemm.detect import device as detect_device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm, Range
from tirgemm.timings import Timings
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import SetMember, Workbench

GEMM = "16x64x128:f16:nt"
WAYS = {
    "raw": "raw(a, b, out)",
    "raw_set": "raw_set(a, b, out)",
    "kernel_out": "kernel(a, b, out=out)",
    "kernel": "kernel(a, b)",
    "torch_op": "op(a, b)",
    "torch.matmul": "matmul(a, bt, out=out)",
}
BLOCK = 500
BLOCKS = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--commit", help="the program's commit, where this copy of it has no history")
    options = parser.parse_args()
    import torch

    device, gemm, signer = detect_device(options.device), Gemm.parse(GEMM), Signer.generate()
    config = family_named("simt").default(gemm, device, "isolated")
    with Workbench(device, MemoryStore(), signer, processes=1) as bench:
        binary = bench.build(gemm, config).result()
        package = bench.package(gemm, config, binary)
        whole = kernel_set(bench, gemm)
    kernel, in_set = (load(data, trust=Trust.of(signer.public)) for data in (package, whole))
    place = f"cuda:{device.index}"
    a = torch.randn(gemm.m_max, gemm.k, dtype=torch.float16, device=place)
    b = torch.randn(gemm.n, gemm.k, dtype=torch.float16, device=place)
    out = torch.empty(gemm.m_max, gemm.n, dtype=torch.float16, device=place)
    op, raw, bt = tirgemm_torch.matmul_op(kernel), kernel.raw, b.t()
    names = {
        "raw": raw,
        "raw_set": in_set.raw,
        "kernel": kernel,
        "op": op,
        "matmul": torch.matmul,
        "a": a,
        "b": b,
        "bt": bt,
        "out": out,
    }
    samples = alternate({way: Timer(call, globals=names) for way, call in WAYS.items()}, torch.cuda.synchronize)
    about = environment(device, Path(__file__).parents[1], options.commit)
    origin = measured_at(about, binary.source_sha256)
    rows: list[dict[str, Any]] = [row(name, us) | origin for name, us in samples.items()]
    document = {
        "format": 1,
        "suite": "calls",
        "regime": "calls",
        "environment": about,
        "gemm": GEMM,
        "calls_a_block": BLOCK,
        "config": config.to_json(),
        "rows": rows,
    }
    options.out.write_text(dump(document))
    for entry in rows:
        print(f"{entry['way']:14} {entry['median_us']:.2f} us")
    return 0


def kernel_set(bench: Workbench, gemm: Gemm) -> bytes:
    """The package of a set of eight kernels, of which the last but one serves ``gemm``."""
    highs = [gemm.m_max - 6 + number for number in range(7)] + [2 * gemm.m_max]
    family, members, low = family_named("simt"), [], 1
    for high in highs:
        part = gemm.with_(m=Range(low, high))
        config = family.default(part, bench.device, "isolated")
        members.append(SetMember(part, config, bench.build(part, config).result(), None, Timings()))
        low = high + 1
    return bench.package_set(gemm.with_(m=Range(1, highs[-1])), members, Timings(), ("isolated", "unverified"))


def alternate(ways: dict[str, Timer], synchronise: Callable[[], None]) -> dict[str, list[float]]:
    """Samples in microseconds a call, by way; the first round of each is not kept."""
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for block in range(BLOCKS + 1):
        for way, timer in ways.items():
            synchronise()
            took = timer.timeit(BLOCK)
            if block:
                samples[way].append(round(1e6 * took / BLOCK, 4))
    return samples


def row(name: str, us: list[float]) -> dict[str, Any]:
    return {
        "way": name,
        "call": WAYS[name],
        "samples_us": us,
        "median_us": statistics.median(us),
        "min_us": min(us),
    }


if __name__ == "__main__":
    sys.exit(main())
