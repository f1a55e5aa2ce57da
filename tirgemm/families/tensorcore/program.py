"""Program and launch of a call: repack kernels, the GEMM kernel, the split-K reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tirgemm.expr import make
from tirgemm.families.base import Program
from tirgemm.families.tensorcore.reduce import reduce_grid, reduce_kernel, reduce_threads
from tirgemm.families.tensorcore.repack import REPACK_THREADS, repack_grid, repack_kernel
from tirgemm.families.tensorcore.tile_blocks import PARTIALS
from tirgemm.families.tensorcore.tiling import Side, Tiling
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Param, Pointer, Scalar, Size, Workspace, scalar_args, tensor_args

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_FLOAT_BYTES = 4
_PASS_CONFIG: tuple[tuple[str, object], ...] = (
    # It would share registers between buffers whose addresses instructions take.
    ("tirx.disable_storage_rewrite", True),
    # NVRTC eliminates common subexpressions itself; TVM's would become kernel parameters.
    ("tirx.disable_cse_tir", True),
)


def program(family: str, tiling: Tiling, gemm_kernel: PrimFunc, block: tuple[int, int, int]) -> Program:
    """The program around the kernel that multiplies, whose symbol is ``FAMILY_gemm`` and whose threads are
    ``block``."""
    from tvm import IRModule

    functions = {symbol_of(family, "gemm"): gemm_kernel}
    for side in repacked_sides(tiling):
        symbol = symbol_of(family, f"repack_{side.operand}")
        functions[symbol] = repack_kernel(tiling, side, symbol)
    if tiling.split > 1:
        symbol = symbol_of(family, "reduce")
        functions[symbol] = reduce_kernel(tiling, symbol)
    return Program(IRModule(functions), launch(family, tiling, block), "s_tir", _PASS_CONFIG)


def launch(family: str, tiling: Tiling, block: tuple[int, int, int]) -> Launch:
    """The host side of a call."""
    gemm = tiling.gemm
    size = (Size(gemm.m_dim),) if isinstance(gemm.m, Range) else ()
    sources = tuple(Pointer(side.source.name if side.source else side.operand) for side in tiling.sides)
    finish = _finish(gemm)
    kernels = []
    workspaces = []
    for side in repacked_sides(tiling):
        assert side.source is not None
        params: tuple[Param, ...] = (Pointer(side.operand), Pointer(side.source.name), *size)
        symbol = symbol_of(family, f"repack_{side.operand}")
        kernels.append(KernelLaunch(symbol, params, repack_grid(side.source), (REPACK_THREADS, 1, 1)))
        workspaces.append(Workspace(side.source.name, side.source.nbytes))
    outputs: tuple[Param, ...] = (Pointer(PARTIALS),) if tiling.split > 1 else finish
    params = (*sources, *outputs, *size)
    symbol = symbol_of(family, "gemm")
    kernels.append(KernelLaunch(symbol, params, tiling.grid, block, shared_bytes=tiling.shared_bytes))
    if tiling.split > 1:
        params = (Pointer(PARTIALS), *finish, *size)
        symbol = symbol_of(family, "reduce")
        kernels.append(KernelLaunch(symbol, params, reduce_grid(tiling), (reduce_threads(tiling), 1, 1)))
        workspaces.append(Workspace(PARTIALS, make("mul", tiling.partial_elements, _FLOAT_BYTES)))
    return Launch(tensor_args(gemm), scalar_args(gemm), tuple(kernels), tuple(workspaces))


def symbol_of(family: str, kernel: str) -> str:
    return f"{family}_{kernel}"


def repacked_sides(tiling: Tiling) -> list[Side]:
    return [side for side in tiling.sides if side.source is not None]


def _finish(gemm: Gemm) -> tuple[Param, ...]:
    """What the epilogue takes, in order."""
    tensors = [name for name in ("c", "bias") if getattr(gemm, "beta" if name == "c" else "bias")]
    return (*(Pointer(name) for name in [*tensors, "d"]), *(Scalar(name) for name in gemm.scalars))
