"""Program of a plan: the GEMM kernel, a repack kernel before it where needed, a split-K reduction behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tirgemm.families.base import Program, TimedProgram
from tirgemm.families.common.aligned_copy import AlignedCopy
from tirgemm.families.common.ring_buffer import RingBuffer
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.families.wgmma.device.arguments import Arguments
from tirgemm.families.wgmma.planning.launch import REDUCE_SYMBOL, SYMBOL, launch
from tirgemm.families.wgmma.planning.names import REPACK
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.repacking import REPACK_SYMBOL, copies
from tirgemm.families.wgmma.planning.span_kinds import ring_buffer
from tirgemm.gemm import Gemm
from tirgemm.launch import Param

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# NVRTC eliminates common subexpressions itself; TVM's only add variables.
_PASS_CONFIG: tuple[tuple[str, object], ...] = (("tirx.disable_cse_tir", True),)


def program(plan: Plan, ring: RingBuffer | None = None) -> Program:
    """The module of ``plan`` and the launch that runs it; with a ``ring``, what multiplies records its times there."""
    from tvm import IRModule

    from tirgemm.families.wgmma.device.kernel import gemm_kernel
    from tirgemm.families.wgmma.device.reduce import reduce_kernel

    gemm, params = traced(partial(gemm_kernel, plan), partial(_declared, plan, Arguments.declare_gemm, ring))
    functions = {SYMBOL: gemm}
    reduce_params: tuple[Param, ...] = ()
    if plan.cluster.writes_partials:
        declare = partial(_declared, plan, Arguments.declare_reduce)
        functions[REDUCE_SYMBOL], reduce_params = traced(partial(reduce_kernel, plan), declare)
    items = copies(plan.gemm) if plan.load == REPACK else ()
    repack_params: tuple[Param, ...] = ()
    if items:
        functions[REPACK_SYMBOL], repack_params = copying(plan.gemm, items, plan.units)
    made = launch(plan, params, reduce_params, repack_params)
    if ring is not None:
        made = replace(made, tensors=(*made.tensors, ring.tensor))
    return Program(IRModule(functions), made, "tirx", _PASS_CONFIG)


def timed_program(plan: Plan, slots: int) -> TimedProgram:
    """The program of ``plan`` whose warpgroups record time stamps, the last ``slots`` spans each."""
    ring = ring_buffer(plan, slots)
    return TimedProgram(program(plan, ring), SYMBOL, ring, plan.grid.blocks)


def copying(gemm: Gemm, items: tuple[AlignedCopy, ...], units: int) -> tuple[PrimFunc, tuple[Param, ...]]:
    """The kernel that copies operands of ``gemm`` on ``units`` SMs, and its parameters."""
    from tirgemm.families.wgmma.device.repack import RepackArguments, repack_kernel

    return traced(partial(repack_kernel, items), lambda: RepackArguments(gemm, items, units))


def traced(
    write: Callable[[Callable[[], Arguments]], PrimFunc], declare: Callable[[], Arguments]
) -> tuple[PrimFunc, tuple[Param, ...]]:
    """The PrimFunc that ``write`` makes of arguments, which it declares once it is open, and their parameters."""
    declared: list[Arguments] = []

    def arguments() -> Arguments:
        declared.append(declare())
        return declared[-1]

    with quick_tracing():
        function = write(arguments)
    return function, tuple(declared[-1].params)


def _declared(plan: Plan, declare: Callable[[Arguments], None], ring: RingBuffer | None = None) -> Arguments:
    arguments = Arguments(plan, ring)
    declare(arguments)
    return arguments
