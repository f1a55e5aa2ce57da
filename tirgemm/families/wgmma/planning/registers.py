"""Register budgets of producer and consumer threads for ``setmaxnreg``."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.families.wgmma.planning.names import DIRECT, STAGED
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES
from tirgemm.gemm import Gemm, Range

# Consumers -> registers of a producer's thread and of a consumer's: what fits the register file after setmaxnreg. The
# first that leaves the accumulators room is taken.
_REGISTERS = {1: ((96, 240),), 2: ((88, 208), (56, 224), (40, 232)), 3: ((56, 152),)}
# The same where two blocks share an SM.
_HALF_REGISTERS = {1: ((56, 200), (40, 216)), 2: ((48, 96), (32, 104)), 3: ((40, 72),)}
# Registers of a consumer's thread beside its accumulators, found by compiling: what the assembler needs lest it spills.
# It is no simple function; a config in some hundreds of those that are near the limit still spills a few bytes.
_OTHER_REGISTERS = 40
# More for erf; for C's places beside D's; for a tile's coordinates where they take division by m; for storing straight
# from the registers; for outputs that are finished before their turn.
_ERF_REGISTERS, _ADDRESS_REGISTERS, _COORDINATE_REGISTERS, _DIRECT_REGISTERS, _FINISHED_REGISTERS = 32, 48, 8, 48, 32
# For fragments of four-byte outputs that are finished two at a time, beside C's places.
_PAIRED_REGISTERS = 16
# For sums of a cluster's parts that are loaded before they are added.
_LOADED_REGISTERS = 40
# Beside fp16 sums that are unpacked.
_UNPACKED_REGISTERS = 16


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers of a producer's thread and of a consumer's, as setmaxnreg deals them out, and those of a consumer's for
    all but accumulators."""

    producer: int
    consumer: int
    other: int

    @property
    def for_accumulators(self) -> int:
        """Registers for accumulators that leave a consumer's thread what the rest of its work takes."""
        return self.consumer - self.other


def registers(plan: Plan) -> Registers:
    """What the threads of ``plan`` have."""
    table = _REGISTERS if plan.resident == 1 else _HALF_REGISTERS
    other, offered = _besides_accumulators(plan), table[plan.warpgroups.consumers]
    need = plan.warpgroups.accumulator_registers + other
    producer, consumer = next((pair for pair in offered if need <= pair[1]), offered[-1])
    return Registers(producer, consumer, other)


def _besides_accumulators(plan: Plan) -> int:
    gemm, other = plan.gemm, _OTHER_REGISTERS
    if not plan.cluster.writes_partials:
        if gemm.act == "gelu":
            other += _ERF_REGISTERS
        # fp16 sums are unpacked before they are finished.
        if plan.warpgroups.half and not has_plain_epilogue(gemm):
            other += plan.warpgroups.accumulators - plan.warpgroups.accumulator_registers + _UNPACKED_REGISTERS
        if gemm.beta and (
            plan.epilogue == STAGED or plan.cluster.adds_parts or (plan.staging.used and plan.warpgroups.blocks > 1)
        ):
            other += _ADDRESS_REGISTERS
    if isinstance(gemm.m, Range) and gemm.batch > 1:
        other += _COORDINATE_REGISTERS
    if plan.epilogue == DIRECT and not plan.warpgroups.pingpong and plan.warpgroups.blocks > 1:
        apart = gemm.beta and gemm.leading("c") != gemm.leading("d")
        other += _DIRECT_REGISTERS + (_ADDRESS_REGISTERS if apart else 0)
    # Outputs that are no pairs have a place and a condition each.
    if plan.epilogue == DIRECT and not plan.cluster.writes_partials and not plan.pairs and not plan.orientation.swapped:
        other += plan.cluster.stored_columns // 2
    # What two chunks have in common is finished once; turned, rows of a chunk are finished together.
    if (
        plan.staging.used
        and not has_plain_epilogue(gemm)
        and (plan.orientation.swapped or plan.cluster.stored_columns % plan.staging.chunk)
    ):
        other += _FINISHED_REGISTERS
    if (
        gemm.beta
        and plan.staging.used
        and plan.staging.size > ELEMENT_BYTES
        and plan.warpgroups.blocks > 1
        and not plan.orientation.swapped
    ):
        other += _PAIRED_REGISTERS
    if plan.cluster.adds_in_turn:
        # The sums so far; and fp16 ones are unpacked before they are added to those.
        other += plan.warpgroups.accumulators * (2 if plan.warpgroups.half else 1)
    if plan.cluster.adds_parts and plan.cluster.reducers < plan.split:
        gathered = plan.warpgroups.accumulators // plan.cluster.reducers
        other += gathered + min(gathered, _LOADED_REGISTERS)
    return other


def has_plain_epilogue(gemm: Gemm) -> bool:
    """Whether D is the sums themselves."""
    return gemm.act == "none" and not (gemm.alpha or gemm.beta or gemm.bias)
