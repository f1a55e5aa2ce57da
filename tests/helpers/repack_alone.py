"""The program of wgmma's copies to aligned rows without the kernel that reads them."""

from __future__ import annotations

from tirgemm.families.base import Program
from tirgemm.families.common.aligned_copy import AlignedCopy
from tirgemm.families.wgmma.planning.repacking import REPACK_SYMBOL, REPACK_THREADS, repack_grid
from tirgemm.families.wgmma.program import copying
from tirgemm.gemm import Gemm
from tirgemm.launch import KernelLaunch, Launch, Workspace, tensor_args


def repack_alone(gemm: Gemm, items: tuple[AlignedCopy, ...], units: int, workspaces: tuple[Workspace, ...]) -> Program:
    """Copies ``items``, operands of ``gemm``, on ``units`` SMs; ``workspaces`` are those that the launch has."""
    from tvm import IRModule

    function, params = copying(gemm, items, units)
    grid, block = (repack_grid(items, units), 1, 1), (REPACK_THREADS, 1, 1)
    kernel = KernelLaunch(REPACK_SYMBOL, params, grid, block)
    launch = Launch(tensor_args(gemm), (), (kernel,), workspaces)
    return Program(IRModule({REPACK_SYMBOL: function}), launch, "tirx", (("tirx.disable_cse_tir", True),))
