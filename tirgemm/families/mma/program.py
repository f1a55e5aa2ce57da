"""A config of ``mma`` as a Program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tirgemm.families.base import Program
from tirgemm.families.common.launch_bounds import bounded
from tirgemm.families.mma.epilogue import Sums, stage_outputs
from tirgemm.families.mma.intrinsics import with_instructions
from tirgemm.families.mma.schedule import SYMBOL, scheduled
from tirgemm.families.tensorcore import program as assembled
from tirgemm.families.tensorcore.copies import Stage, copies
from tirgemm.families.tensorcore.intrinsics import exchanged
from tirgemm.families.tensorcore.names import STAGED
from tirgemm.families.tensorcore.pipeline import pipelined
from tirgemm.families.tensorcore.tiling import Tiling
from tirgemm.hardware import WARP

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


def program(tiling: Tiling, registers: int) -> Program:
    """The scheduled module of ``tiling`` with ``registers`` sets of fragments, and the launch that runs it."""
    return assembled.program("mma", tiling, kernel(tiling, registers), (tiling.threads, 1, 1))


def kernel(tiling: Tiling, registers: int) -> PrimFunc:
    """The kernel that multiplies: its schedule, then instructions, then the pipeline."""
    sch, nest = scheduled(tiling, registers)
    thread = sch.get(nest.thread).loop_var
    func, stage, sums = sch.mod[SYMBOL], Stage(tiling), Sums(tiling)
    func = exchanged(func, copies(func, stage, by_turns=True))
    func = pipelined(with_instructions(func, stage, sums, thread % WARP, registers), spread=True)
    if tiling.epilogue == STAGED:
        func = stage_outputs(func, stage, sums, sch.get(nest.outputs).loop_var)
    return bounded(func, tiling.resident)
