"""How many registers a config's threads have and take: what the assembler needs lest it spills. No TVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tirgemm.families.wgmma.names import DIRECT, STAGED
from tirgemm.gemm import Range

if TYPE_CHECKING:
    from tirgemm.families.wgmma.plan import Plan

# Consumers -> registers of a producer's thread and of a consumer's: what fits the register file after setmaxnreg. The
# first that leaves the accumulators room is taken.
_REGISTERS = {1: ((96, 240),), 2: ((88, 208), (56, 224), (40, 232)), 3: ((56, 152),)}
# The same where two blocks share an SM.
_HALF_REGISTERS = {1: ((56, 200), (40, 216)), 2: ((48, 96), (32, 104)), 3: ((40, 72),)}
# Registers of a consumer's thread beside its accumulators, and more for erf, for C's places beside D's, for a tile's
# coordinates where they take division by m, and for storing straight from the registers: what the assembler needs lest
# it spills, found by compiling.
_OTHER_REGISTERS, _ERF_REGISTERS, _ADDRESS_REGISTERS = 40, 32, 32
_COORDINATE_REGISTERS, _DIRECT_REGISTERS = 8, 40
# For another block's sums and their places.
_HANDED_REGISTERS = 40


def besides_accumulators(plan: Plan) -> int:
    """Registers of a consumer's thread for all but accumulators."""
    other = _OTHER_REGISTERS
    if not plan.partials and plan.gemm.act == "gelu":
        other += _ERF_REGISTERS
    if not plan.partials and plan.gemm.beta and plan.epilogue == STAGED:
        other += _ADDRESS_REGISTERS
    if isinstance(plan.gemm.m, Range) and plan.gemm.batch > 1:
        other += _COORDINATE_REGISTERS
    if plan.epilogue == DIRECT and not plan.pingpong and plan.blocks > 1:
        other += _DIRECT_REGISTERS
    if plan.handed_over:
        other += _HANDED_REGISTERS
    return other


def of_threads(plan: Plan) -> tuple[int, int]:
    """Registers of a producer's thread and of a consumer's, as setmaxnreg deals them out."""
    table = _REGISTERS if plan.resident == 1 else _HALF_REGISTERS
    need, offered = plan.accumulator_registers + plan.other_registers, table[plan.consumers]
    return next((pair for pair in offered if need <= pair[1]), offered[-1])
