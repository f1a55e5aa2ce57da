"""Span kinds and ring buffer of a plan's timeline."""

from __future__ import annotations

from tirgemm.expr import evaluate
from tirgemm.families.common.ring_buffer import TILE, RingBuffer
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.gemm import Range

WAIT, TURN, LOAD, MULTIPLY = "wait", "turn", "load", "multiply"
DRAIN, EXCHANGE, ADD, STORE = "drain", "exchange", "add", "store"
KINDS = {
    TILE: "all that a warpgroup does for one tile of D, or for one part of k of it",
    WAIT: "waits for a stage: the producer until it is free, a consumer until its data are there",
    TURN: "in ping-pong, waits until the other consumer has issued its tile's last wgmma",
    LOAD: "issues a stage's TMA loads, whose data come later, or copies the stage itself",
    MULTIPLY: "from the issue of a stage's wgmmas until those of the stage before are done",
    DRAIN: "waits for the tile's last wgmmas",
    EXCHANGE: "shows its sums to the cluster, and waits for those of the others",
    ADD: "adds the cluster's sums, or waits for those of a part and adds them to its own",
    STORE: "the epilogue; TMA stores may still be under way when it ends",
}


def ring_buffer(plan: Plan, slots: int) -> RingBuffer:
    """The ring buffers of every warpgroup of ``plan``, for the most blocks that any m launches. Raises
    InvalidRequest."""
    blocks = evaluate(plan.grid.blocks, plan.gemm.m_max)
    if isinstance(plan.gemm.m, Range):
        # Fewer rows can make a wave of more blocks, never of more than find a place at once.
        blocks = max(blocks, plan.grid.slots)
    roles = ("producer", *(f"consumer {number}" for number in range(plan.warpgroups.consumers)))
    return RingBuffer(blocks, roles, KINDS, slots)
