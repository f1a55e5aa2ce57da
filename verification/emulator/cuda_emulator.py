"""Runs generated CUDA source on the CPU, thread by thread, to find races and barriers that not every thread reaches.

The source is the very one that NVRTC gets; ``cuda_on_cpu.h`` stands for the CUDA headers, and for the
helpers in which the tensor-core families wrap an instruction. For kernels with threads in x alone.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm.expr import evaluate
from tirgemm.launch import KernelLaunch, Launch
from verification.emulator.call_memory import addresses, argument, placed
from verification.emulator.memory import GuardedMemory
from verification.emulator.operands import KernelCall, decode
from verification.emulator.precompiled import compile_kernels, folder_of, kernel_text, object_of

_HEADER = Path(__file__).with_name("cuda_on_cpu.h")
# Fortified, longjmp() refuses the jumps between the threads' stacks.
_COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC", "-U_FORTIFY_SOURCE")
# Orders from here on let one warp after the other run on alone, by the same numbers.
WARPS_AHEAD = 16
_HELPER = r"__forceinline__ __device__ void (tirgemm_\w+)\(([^)]*)\) \{(?:[^\n]*\}\n|\n.*?\n\})"
# Dynamic shared memory under a name of its own.
_SHARED = r"extern __shared__ __align__\(\d+\) (\w+) ((?!buf_dyn)\w+)\[\];"
_ASYNC = r"__forceinline__ __device__ void (ptx_cp_async_\w+?_(\d+)_\d+_\d+)\(([^)]*)\) \{.*?\n\}"
_WAIT = re.compile(r"cp\.async\.wait_group (\d+)")


class Diverged(AssertionError):
    """The threads of a block did not all reach the same barriers."""


@dataclass(frozen=True)
class Compiled:
    """A shared library with the kernels of ``launch``."""

    library: Path
    launch: Launch


def run(compiled: Compiled, case: KernelCall, order: int) -> np.ndarray:
    """D as (batch, m, n) float64, of threads in one order; even orders copy late, odd ones at once.

    0: by number; 1: from the last; others are random; from 16 on a warp runs on alone as far as it can.

    Raises Diverged, and AssertionError where a guard band was written.
    """
    library, launch = ctypes.CDLL(str(compiled.library)), compiled.launch
    memory, views = placed(launch, case)
    for kernel in launch.kernels:
        _run(library, kernel, case, memory, order)
    for name, owner in memory.items():
        owner.check_guards(name)
    d = decode(views["d"].copy(), case.gemm.out)
    return d if d.ndim == 3 else d[None]


def _run(library: Any, kernel: KernelLaunch, case: KernelCall, memory: dict[str, GuardedMemory], order: int) -> None:
    arguments = [argument(param, case, memory) for param in kernel.params]
    grid = (ctypes.c_int * 3)(*(evaluate(extent, case.m) for extent in kernel.grid))
    if getattr(library, f"emulate_{kernel.symbol}")(grid, kernel.block[0], order, addresses(arguments)):
        raise Diverged(f"{kernel.symbol}: threads of a block part ways at a barrier")


def compile_source(source: str, launch: Launch, folder: Path) -> Compiled:
    """The kernels of ``launch`` from CUDA source, compiled in ``folder`` by g++."""
    text = re.sub(_SHARED, r"\1* \2 = (\1*)buf_dyn_shmem_ptr;", kernel_text(source))
    text = re.sub(_HELPER, _helper, text, flags=re.DOTALL)
    text = re.sub(r'asm volatile\("cp\.async\.wait_group (\d+);".*?\);', r"cp_async_wait(\1);", text)
    text = re.sub(r'asm volatile\("cp\.async\.commit_group;".*?\);', "cp_async_commit();", text)
    text = re.sub(_ASYNC, _async_copy, text, flags=re.DOTALL)
    entry = "".join(_entry(source, symbol) for symbol in (kernel.symbol for kernel in launch.kernels))
    (folder / "kernel.cc").write_text(f'#include "{_HEADER.name}"\n{text}\n{entry}')
    command = [*_COMPILER, f"-I{folder_of(_HEADER, _COMPILER)}", f"-I{_HEADER.parent}"]
    return Compiled(compile_kernels(command, object_of(_HEADER.with_suffix(".cc"), _COMPILER), folder), launch)


def _entry(source: str, symbol: str) -> str:
    signature = re.search(rf"{symbol}\(([^)]*)\) \{{", source)
    assert signature is not None
    types = [param.rsplit(" ", 1)[0].replace("__restrict__", "").strip() for param in signature[1].split(",")]
    passed = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
    return (
        f'extern "C" int emulate_{symbol}(const int* grid, int threads, unsigned order, void** arguments) {{\n'
        f"  const std::function<void()> kernel = [=] {{ {symbol}({passed}); }};\n"
        f"  if (order >= {WARPS_AHEAD}) return run_grid_warps_ahead(grid, threads, order - {WARPS_AHEAD}, kernel);\n"
        "  return run_grid(grid, threads, order, kernel);\n}\n"
    )


def _helper(match: re.Match[str]) -> str:
    """What stands for a helper around one instruction: its name says which, of a wait its assembly."""
    name, parameters = match[1], match[2]
    if wait := _WAIT.search(match[0]):
        return f"inline void {name}() {{ cp_async_wait({wait[1]}); }}"
    if copy := re.fullmatch(r"tirgemm_cp_async_(\d+)(_or_zero)?", name):
        return (
            f"inline void {name}({parameters}) {{ copy_or_zero(to, from, {copy[1]}, "
            f"{'inside' if copy[2] else 'true'}); }}"
        )
    return "" if "asm" in match[0] else match[0]


def _async_copy(match: re.Match[str]) -> str:
    """The same function on the emulator: zeros are stored at once, as the real one does."""
    name, width, parameters = match[1], int(match[2]), match[3]
    predicated = "int predicate" in parameters
    zeros = f"if (!predicate) {{ memset(to, 0, {width}); return; }}" if predicated else ""
    return (
        f"inline void {name}({parameters}) {{\n  char* to = (char*)dst + dst_off * 4;\n  {zeros}\n"
        f"  cp_async(to, (const char*)src + src_off * 4, {width});\n}}"
    )
