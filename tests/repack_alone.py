"""The program of wgmma's copies to aligned rows without the kernel that reads them."""

from __future__ import annotations

from tirgemm.families.base import Program
from tirgemm.families.wgmma.repacking import REPACK_SYMBOL, REPACK_THREADS, Repacked, repack_grid
from tirgemm.gemm import Gemm
from tirgemm.launch import KernelLaunch, Launch, Workspace, tensor_args


def repack_alone(gemm: Gemm, items: tuple[Repacked, ...], units: int, workspaces: tuple[Workspace, ...]) -> Program:
    """Copies ``items``, operands of ``gemm``, on ``units`` SMs; ``workspaces`` are those that the launch has."""
    from tvm import IRModule

    from tirgemm.families.wgmma.repack import RepackArguments, repack_kernel

    declared: list[RepackArguments] = []

    def arguments() -> RepackArguments:
        declared.append(RepackArguments(gemm, items, units))
        return declared[-1]

    function = repack_kernel(items, arguments)
    grid, block = (repack_grid(items, units), 1, 1), (REPACK_THREADS, 1, 1)
    kernel = KernelLaunch(REPACK_SYMBOL, tuple(declared[-1].params), grid, block)
    launch = Launch(tensor_args(gemm), (), (kernel,), workspaces)
    return Program(IRModule({REPACK_SYMBOL: function}), launch, "tirx", (("tirx.disable_cse_tir", True),))
