"""A plan as a Program: the GEMM, a kernel before where operands are copied, one behind where k is split."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tirgemm.families.base import Program
from tirgemm.families.tracing import quick_tracing
from tirgemm.families.wgmma.arguments import Arguments
from tirgemm.families.wgmma.launch import REDUCE_SYMBOL, SYMBOL, launch
from tirgemm.families.wgmma.names import REPACK
from tirgemm.families.wgmma.plan import Plan
from tirgemm.families.wgmma.repacking import REPACK_SYMBOL, Repacked, copies
from tirgemm.launch import Param

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# NVRTC eliminates common subexpressions itself; TVM's only add variables.
_PASS_CONFIG: tuple[tuple[str, object], ...] = (("tirx.disable_cse_tir", True),)


def program(plan: Plan) -> Program:
    """The module of ``plan`` and the launch that runs it."""
    from tvm import IRModule

    from tirgemm.families.wgmma.kernel import gemm_kernel
    from tirgemm.families.wgmma.reduce import reduce_kernel

    gemm, params = _written(plan, gemm_kernel, Arguments.declare_gemm)
    functions = {SYMBOL: gemm}
    reduce_params: tuple[Param, ...] = ()
    if plan.partials:
        functions[REDUCE_SYMBOL], reduce_params = _written(plan, reduce_kernel, Arguments.declare_reduce)
    items = copies(plan.gemm) if plan.load == REPACK else ()
    repack_params: tuple[Param, ...] = ()
    if items:
        functions[REPACK_SYMBOL], repack_params = _copying(plan, items)
    made = launch(plan, params, reduce_params, repack_params)
    return Program(IRModule(functions), made, "tirx", _PASS_CONFIG)


def _copying(plan: Plan, items: tuple[Repacked, ...]) -> tuple[PrimFunc, tuple[Param, ...]]:
    """The kernel that copies operands, and its parameters."""
    from tirgemm.families.wgmma.repack import RepackArguments, repack_kernel

    declared: list[RepackArguments] = []

    def arguments() -> RepackArguments:
        declared.append(RepackArguments(plan.gemm, items, plan.units))
        return declared[-1]

    function = repack_kernel(items, arguments)
    return function, tuple(declared[-1].params)


def _written(
    plan: Plan, write: Callable[..., PrimFunc], declare: Callable[[Arguments], None]
) -> tuple[PrimFunc, tuple[Param, ...]]:
    declared: list[Arguments] = []

    def arguments() -> Arguments:
        """Called by the script once its PrimFunc is open."""
        declared.append(Arguments(plan))
        declare(declared[-1])
        return declared[-1]

    with quick_tracing():
        function = write(plan, arguments)
    return function, tuple(declared[-1].params)
