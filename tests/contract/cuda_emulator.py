"""Runs generated CUDA source on the CPU, thread by thread, to find races and barriers that not every thread reaches.

The source is the very one that NVRTC gets; ``cuda_on_cpu.h`` stands for the CUDA headers. For kernels over fp32
or fp16 operands with threads in x alone.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.cpu_runner import _place
from tests.contract.operands import Case, decode, encode
from tirgemm.expr import evaluate
from tirgemm.launch import Launch, Pointer, Scalar, Size

_HEADER = Path(__file__).with_name("cuda_on_cpu.h")
_ASYNC = r"__forceinline__ __device__ void (ptx_cp_async_\w+?_(\d+)_\d+_\d+)\(([^)]*)\) \{.*?\n\}"


class Diverged(AssertionError):
    """The threads of a block did not all reach the same barriers."""


def emulate(
    source: str, launch: Launch, case: Case, folder: Path, orders: tuple[int, ...] = (0, 1, 6, 7)
) -> np.ndarray:
    """D as (batch, m, n) float64; AssertionError where it depends on the order in which threads run."""
    (kernel,) = launch.kernels
    library = ctypes.CDLL(str(_compiled(source, kernel.symbol, folder)))
    results = []
    for order in orders:
        placed = {arg.name: _place(arg, case.m) for arg in launch.tensors}
        arguments: list[Any] = []
        for arg in launch.tensors:
            if not arg.output:
                values = encode(case.tensors[arg.name], arg.dtype)
                placed[arg.name][1][...] = values[0] if values.ndim > len(arg.shape) else values
        for param in kernel.params:
            if isinstance(param, Pointer):
                arguments.append(ctypes.c_void_p(placed[param.name][0].address))
            elif isinstance(param, Scalar):
                arguments.append(ctypes.c_float(case.scalars[param.name]))
            else:
                assert isinstance(param, Size)
                arguments.append(ctypes.c_int(evaluate(param.value, case.m)))
        grid = (ctypes.c_int * 3)(*(evaluate(extent, case.m) for extent in kernel.grid))
        slots = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        if library.emulate(grid, kernel.block[0], order, slots):
            raise Diverged(f"{kernel.symbol}: threads of a block part ways at a barrier")
        for name, (memory, _) in placed.items():
            memory.check_guards(name)
        d = decode(placed["d"][1].copy(), case.gemm.out)
        results.append(d if d.ndim == 3 else d[None])
    for other in results[1:]:
        assert np.array_equal(results[0], other, equal_nan=True), (
            f"{kernel.symbol}: a race: the result depends on the order"
        )
    return results[0]


def _compiled(source: str, symbol: str, folder: Path) -> Path:
    signature = re.search(rf"{symbol}\(([^)]*)\) \{{", source)
    assert signature is not None
    types = [param.rsplit(" ", 1)[0].replace("__restrict__", "").strip() for param in signature[1].split(",")]
    passed = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
    text = source[source.index("#include <cuda.h>\n#endif") :].removeprefix("#include <cuda.h>\n#endif")
    text = text.replace("#include <cuda_fp16.h>", "")
    text = re.sub(r'asm volatile\("cp\.async\.wait_group (\d+);".*?\);', r"cp_async_wait(\1);", text)
    text = re.sub(r'asm volatile\("cp\.async\.commit_group;".*?\);', "cp_async_commit();", text)
    text = re.sub(_ASYNC, _async_copy, text, flags=re.DOTALL)
    entry = (
        'extern "C" int emulate(const int* grid, int threads, unsigned order, void** arguments) {\n'
        f"  return run_grid(grid, threads, order, [=] {{ {symbol}({passed}); }});\n}}\n"
    )
    at = folder / "kernel.cc"
    at.write_text(f'#include "{_HEADER.name}"\n{text}\n{entry}')
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{_HEADER.parent}", "-o", "kernel.so", "kernel.cc"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return folder / "kernel.so"


def _async_copy(found: re.Match[str]) -> str:
    """The same function on the emulator: zeros are stored at once, as the real one does."""
    name, width, parameters = found[1], int(found[2]), found[3]
    predicated = "int predicate" in parameters
    zeros = f"if (!predicate) {{ memset(to, 0, {width}); return; }}" if predicated else ""
    return (
        f"inline void {name}({parameters}) {{\n  char* to = (char*)dst + dst_off * 4;\n  {zeros}\n"
        f"  cp_async(to, (const char*)src + src_off * 4, {width});\n}}"
    )
