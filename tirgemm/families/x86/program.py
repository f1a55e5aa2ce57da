"""A config of the x86 family as a Program: the copies, then the multiplication."""

from __future__ import annotations

from tvm import IRModule

from tirgemm.config import Config
from tirgemm.expr import make
from tirgemm.families.base import Program
from tirgemm.families.x86.layout import PanelTiling, elements
from tirgemm.families.x86.micro import multiply
from tirgemm.families.x86.pack import pack_a, pack_b
from tirgemm.gemm import Gemm
from tirgemm.launch import KernelLaunch, Launch, Workspace, scalar_args, tensor_args


def program(gemm: Gemm, config: Config) -> Program:
    """The Program of a config that is known to be valid."""
    tiling = PanelTiling(gemm, config)
    threads = (("threads", int(config["threads"])),)
    functions, kernels, workspaces = {}, [], []
    parts = [
        (tiling.packs_a, "pack_a", pack_a, make("mul", gemm.batch, tiling.panels_m)),
        (tiling.packs_b, "pack_b", pack_b, gemm.batch * tiling.panels_n),
        (True, "multiply", multiply, tiling.tasks),
    ]
    for wanted, symbol, write, tasks in parts:
        if wanted:
            functions[symbol], params = write(tiling)
            kernels.append(KernelLaunch(symbol, params, grid=(tasks, 1, 1), attributes=threads))
    needed = [
        (tiling.packs_a, "packed_a", tiling.shape_a()),
        (tiling.packs_b, "packed_b", tiling.shape_b()),
        (tiling.k_blocks > 1, "partial", tiling.shape_partial()),
    ]
    for wanted, name, shape in needed:
        if wanted:
            workspaces.append(Workspace(name, make("mul", 4, elements(shape))))
    launch = Launch(tensor_args(gemm), scalar_args(gemm), tuple(kernels), tuple(workspaces))
    return Program(IRModule(functions), launch)
