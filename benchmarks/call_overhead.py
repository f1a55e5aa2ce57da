"""Microseconds a call from Python, on PyTorch tensors, of a kernel so small that the host is all that counts.

    python benchmarks/call_overhead.py --out benchmarks/results/nvidia-h200/calls.json
    python benchmarks/call_overhead.py --device cpu --out calls.json

Ways: on a GPU ``driver`` (a kernel that does nothing, queued by C++ code that does nothing else: what is left to the
driver); ``raw`` (the launcher's function), ``raw_set`` (that of a set of eight kernels, of which the last but one
runs), ``kernel_out`` (``Kernel.__call__`` with ``out=``), ``kernel`` (allocating),
``torch_op`` (the operator ``tirgemm::gemm``), ``linear`` (``tirgemm.torch.linear``) beside PyTorch's own, a module of
each, ``linear`` with a slice made for the call as its weight, ``matmul``, ``torch.matmul`` with ``out=``, and what is
``left`` to PyTorch: ``linear`` and a module of a weight that no kernel is for, beside PyTorch's own. They take turns,
in an order drawn anew for every round, in blocks of calls that are queued without waiting; a sample is one block's time
over its calls, from a synchronised start to the last call's return.

On a CPU also one row through a layer of a model's size: ``layer`` packs its weight at each call, ``layer_packed`` keeps
it (``prepack=True``), and ``torch.layer`` is PyTorch's product. There the weight counts, not the host.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from timeit import Timer
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tirgemm.torch as tirgemm_torch
from tirgemm.artifact import Kernel, Signer, Trust, load
from tirgemm.bench.results import dump, environment, figures_document, measured_at
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable
from tirgemm.families import family_named
from tirgemm.gemm import DTYPE_NAMES, Gemm, Range
from tirgemm.rounds import FixedRounds, alternate
from tirgemm.timings import Timings
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.driver.cuda import call as driver_call
from tirgemm.tuning.driver.nvrtc import compile_source
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import SetMember, Workbench
from verification import command

GEMMS = {"cuda": "16x64x128:f16:nt", "cpu": "1x16x16:f32:nt"}
FAMILIES = {"cuda": "simt", "cpu": "x86"}
MEMBERS = 8
CALLS = {
    "raw": "raw(a, b, out)",
    "raw_set": "raw_set(a, b, out)",
    "kernel_out": "kernel(a, b, out=out)",
    "kernel": "kernel(a, b)",
    "torch_op": "op(a, b)",
    "torch.matmul": "matmul(a, bt, out=out)",
    "linear": "linear(a, b)",
    "torch.linear": "F.linear(a, b)",
    "linear_slice": "linear(a, experts[1])",
    "torch.linear_slice": "F.linear(a, experts[1])",
    "matmul": "product(a, bt)",
    "torch.matmul_new": "matmul(a, bt)",
    "Linear": "module(a)",
    "torch.Linear": "plain(a)",
    "linear_left": "linear(a, other)",
    "torch.linear_left": "F.linear(a, other)",
    "Linear_left": "left(a)",
    "torch.Linear_left": "plain_left(a)",
}
# What the driver alone takes: a kernel with three pointers, as many as the measured one has, and calls of it from C++.
DRIVER, EMPTY = "driver", "empty"
EMPTY_KERNEL = f'extern "C" __global__ void {EMPTY}(const void* a, const void* b, void* out) {{}}'
LAUNCHES = """
using Size = unsigned;
using Launch = int (*)(void*, Size, Size, Size, Size, Size, Size, Size, void*, void**, void**);
extern "C" int launches(Launch launch, void* function, void* stream, int count) {
  void *pointer = nullptr, *params[] = {&pointer, &pointer, &pointer};
  int result = 0;
  while (count-- > 0 && result == 0) result = launch(function, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr);
  return result;
}
"""
BLOCK = 500
BLOCKS = 60
LAYERS = {"cpu": "1x4096x4096:f32:nt"}
LAYER_CALLS = {"layer": "layer(x)", "layer_packed": "packed(x)", "torch.layer": "F.linear(x, weight)"}
LAYER_BLOCK = 2


def main() -> int:
    options = command.parser(__doc__, "--out", "--device", "--commit").parse_args()
    import torch

    device, signer = detect_device(options.device), Signer.generate()
    gemm, layer_gemms = (
        Gemm.parse(GEMMS[device.kind]),
        [Gemm.parse(LAYERS[kind]) for kind in LAYERS if kind == device.kind],
    )
    with Workbench(device, MemoryStore(), signer, processes=1) as bench:
        built = [build(bench, each) for each in (gemm, *layer_gemms)]
        whole = kernel_set(bench, gemm)
    kernel, *layers, in_set = (
        load(data, trust=Trust.of(signer.public)) for data in (*(package for _, package in built), whole)
    )
    torch.set_grad_enabled(False)
    if device.kind == "cuda":
        torch.cuda.set_device(device.name)  # torch.cuda.synchronize waits for the current device
    dtype, place = getattr(torch, DTYPE_NAMES[gemm.dtype]), device.name
    a = torch.randn(gemm.m_max, gemm.k, dtype=dtype, device=place)
    plain = torch.nn.Linear(gemm.k, gemm.n, bias=False, dtype=dtype, device=place)
    other = torch.nn.Linear(gemm.k, 2 * gemm.n, bias=False, dtype=dtype, device=place)
    tirgemm_torch.register(kernel)
    names = {
        "raw": kernel.raw,
        "raw_set": in_set.raw,
        "kernel": kernel,
        "op": tirgemm_torch.matmul_op(kernel),
        "matmul": torch.matmul,
        "linear": tirgemm_torch.linear,
        "product": tirgemm_torch.matmul,
        "F": torch.nn.functional,
        "module": tirgemm_torch.Linear.of(plain),
        "plain": plain,
        "left": tirgemm_torch.Linear.of(other),
        "plain_left": other,
        "other": other.weight,
        "a": a,
        "b": plain.weight,
        "bt": plain.weight.t(),
        "experts": torch.stack([plain.weight] * 4),
        "out": torch.empty(gemm.m_max, gemm.n, dtype=dtype, device=place),
    }
    synchronise = torch.cuda.synchronize if device.kind == "cuda" else _nothing
    about = environment(device, Path(__file__).parents[1], options.commit)
    groups = [
        (gemm, CALLS, names, BLOCK),
        *((each.gemm, LAYER_CALLS, layer_names(each), LAYER_BLOCK) for each in layers),
    ]
    rows: list[dict[str, Any]] = []
    for (problem, ways, scope, calls), (binary, _) in zip(groups, built, strict=True):
        blocks = {way: partial(block_of, Timer(call, globals=scope), synchronise, calls) for way, call in ways.items()}
        if scope is names and device.kind == "cuda":
            launches = Timer(partial(empty_launches(device), torch.cuda.current_stream().cuda_stream, calls))
            blocks[DRIVER] = partial(block_of, launches, synchronise, calls, calls)
        shared = {"gemm": str(problem), "calls_a_block": calls} | measured_at(about, binary.source_sha256)
        samples = alternate(blocks, FixedRounds(BLOCKS + 1))
        said = {DRIVER: "cuLaunchKernel(empty, ...), in C++"} | ways
        rows += [row(way, said[way], samples[way][1:]) | shared for way in said if way in samples]
    more: dict[str, Any] = {"gemm": str(gemm), "calls_a_block": BLOCK, "config": kernel.config.to_json()}
    options.out.write_text(dump(figures_document("calls", about, rows, **more)))
    for entry in rows:
        print(f"{entry['way']:14} {entry['median_us']:.2f} us")
    return 0


def build(bench: Workbench, gemm: Gemm) -> tuple[Binary, bytes]:
    """The default kernel of a problem, and its package."""
    config = family_named(FAMILIES[bench.device.kind]).default(gemm, bench.device, "isolated")
    binary = bench.build(gemm, config).result()
    return binary, bench.package(gemm, config, binary)


def layer_names(kernel: Kernel) -> dict[str, Any]:
    """What LAYER_CALLS call: a layer that packs its weight for each call, one that keeps it, and PyTorch's product."""
    import torch

    gemm, dtype = kernel.gemm, getattr(torch, DTYPE_NAMES[kernel.gemm.dtype])
    plain = torch.nn.Linear(gemm.k, gemm.n, bias=False, dtype=dtype)
    tirgemm_torch.register(kernel)
    layer, packed = (tirgemm_torch.Linear.of(plain, prepack=prepack) for prepack in (False, True))
    x = torch.randn(gemm.m_max, gemm.k, dtype=dtype)
    return {"layer": layer, "packed": packed, "F": torch.nn.functional, "x": x, "weight": plain.weight}


def kernel_set(bench: Workbench, gemm: Gemm) -> bytes:
    """The package of a set of eight kernels (of fewer for a small m), of which the last but one serves ``gemm``."""
    highs = [*range(max(1, gemm.m_max - MEMBERS + 2), gemm.m_max + 1), 2 * gemm.m_max]
    family, members, low = family_named(FAMILIES[bench.device.kind]), [], 1
    for high in highs:
        part = gemm.with_(m=Range(low, high))
        config = family.default(part, bench.device, "isolated")
        members.append(SetMember(part, config, bench.build(part, config).result(), None, Timings()))
        low = high + 1
    return bench.package_set(gemm.with_(m=Range(1, highs[-1])), members, Timings(), ("isolated", "unverified"))


def empty_launches(device: Device) -> Callable[[int, int], None]:
    """A function that queues a kernel that does nothing on a stream, so many times; the device's context is current."""
    module = driver_call("cuModuleLoadData", compile_source(EMPTY_KERNEL, device.arch, name="empty.cu").data)
    function = int(driver_call("cuModuleGetFunction", module, EMPTY.encode()))
    library = compiled_launches()
    launch = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)

    def queue(stream: int, count: int) -> None:
        result = library.launches(launch, ctypes.c_void_p(function), ctypes.c_void_p(stream), count)
        if result:
            raise DeviceUnavailable(f"{device.name} refuses an empty kernel: cuLaunchKernel answers {result}")

    return queue


def compiled_launches() -> ctypes.CDLL:
    """LAUNCHES, by g++."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "launches.so"
        command_line = ["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command_line, input=LAUNCHES, text=True, check=True)
        return ctypes.CDLL(str(library))


def _nothing() -> None:
    """A CPU's calls have ended when they return."""


def block_of(timer: Timer, synchronise: Callable[[], None], calls: int, of_each: int = 1) -> list[float]:
    """Microseconds a call of one block of so many calls, of which the timed statement makes ``of_each``."""
    synchronise()
    return [round(1e6 * timer.timeit(calls // of_each) / calls, 4)]


def row(name: str, call: str, us: list[float]) -> dict[str, Any]:
    return {
        "way": name,
        "call": call,
        "samples_us": us,
        "median_us": statistics.median(us),
        "min_us": min(us),
    }


if __name__ == "__main__":
    sys.exit(main())
