"""Timeline of a plan: which warpgroups record, and the kinds of the spans that their time is divided into."""

from __future__ import annotations

from tirgemm.expr import evaluate
from tirgemm.families.common.ring_buffer import TILE, RingBuffer
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.gemm import Range

# Waits for a stage, and in ping-pong for the turn to multiply; the load of a stage; the wgmmas of a stage, until those
# of the stage before are done; the end of the last ones; of a split in a cluster the exchange of sums, and their
# addition; the epilogue.
WAIT, TURN, LOAD, MULTIPLY = "wait", "turn", "load", "multiply"
DRAIN, EXCHANGE, ADD, STORE = "drain", "exchange", "add", "store"
KINDS = (TILE, WAIT, TURN, LOAD, MULTIPLY, DRAIN, EXCHANGE, ADD, STORE)


def ring_buffer(plan: Plan, slots: int) -> RingBuffer:
    """The ring buffers of every warpgroup of ``plan``, for the most blocks that any m launches. Raises
    InvalidRequest."""
    blocks = evaluate(plan.grid.blocks, plan.gemm.m_max)
    if isinstance(plan.gemm.m, Range):
        # Fewer rows can make a wave of more blocks, never of more than find a place at once.
        blocks = max(blocks, plan.grid.slots)
    roles = ("producer", *(f"consumer {number}" for number in range(plan.warpgroups.consumers)))
    return RingBuffer(blocks, roles, KINDS, slots)
