# mypy: ignore-errors
# ruff: noqa: F821, N812, PLR5501, SIM102
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""A consumer: one warpgroup that multiplies stage after stage into registers, then stores its part of the tile."""

from __future__ import annotations

from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.script import tirx as T

from tirgemm.families.wgmma.epilogue import Epilogue, store_tile
from tirgemm.families.wgmma.plan import MMA_M, WARPGROUP
from tirgemm.families.wgmma.tile import MMA_K, UNIT


def encode(tile, base, memory):
    """The wgmma descriptor of a tile in stage 0."""
    pointer, swizzle = memory.ptr_to([0, 0]), tile.swizzle
    encoder = T.cuda.wgmma.encode_matrix_descriptor
    T.evaluate(encoder(T.address_of(base), pointer, tile.leading_offset, tile.stride_offset, swizzle))


def multiply(plan, acc, a, b, step):
    """Issue the wgmmas of one stage; the first of a tile overwrites the accumulators."""
    dtype = plan.gemm.dtype
    instruction = T.ptx[f"wgmma.mma_async.sync.aligned.m{MMA_M}n{plan.tile_n}k{MMA_K}.f32.{dtype}.{dtype}"]
    count = plan.tile_n * MMA_M // WARPGROUP
    for number in range(plan.tile_k // MMA_K):
        for block in range(plan.blocks):
            sums = [acc[block * count + i] for i in range(count)]
            left = a + T.uint64(plan.a.step(number) + plan.a.below(block * MMA_M))
            right = b + T.uint64(plan.b.step(number))
            adds = T.bool(True) if number else step > 0
            T.evaluate(instruction(*sums, left, right, adds, 1, 1, int(not plan.a.k_major), int(not plan.b.k_major)))


@T.inline
def release(plan, shared, stage, thread):
    """Tell every block whose data the stage held that this consumer has read it."""
    if plan.cluster == 1:
        if thread == 0:
            shared.ring.empty.arrive(stage)
    else:
        if thread < plan.cluster:
            shared.ring.empty.arrive(stage, remote=thread)


@T.inline
def consume(plan, args, shared, tiles, consumer, warp, lane):
    """One warpgroup: multiply stage after stage into registers, then store the tile."""
    thread: T.let = warp * 32 + lane
    acc = T.alloc_local([plan.accumulators], "float32")
    for i in T.unroll(plan.accumulators):
        acc[i] = T.float32(0)
    a_base: T.uint64
    b_base: T.uint64
    encode(plan.a, a_base, shared.a)
    encode(plan.b, b_base, shared.b)
    # Rows of the tile above this consumer's.
    row = T.meta_var(0 if plan.pingpong else consumer * plan.consumer_rows)
    a_below = T.meta_var(0 if plan.pingpong else consumer * plan.a.below(plan.consumer_rows))
    epilogue = T.meta_var(Epilogue(plan, args, shared, tiles, acc, row, consumer, warp, lane, thread))
    at = PipelineState(plan.stages, 0)
    skipped = T.meta_var(plan.split_steps % plan.stages)
    laps = T.meta_var(plan.split_steps // plan.stages % 2)
    turn: T.int32
    if plan.pingpong:
        # The first consumer's turn comes at once: the phase before a barrier's first counts as complete.
        turn = 1 - consumer
        at.stage = consumer * skipped
        at.phase = consumer * laps
    last: T.int32
    last = 0
    while tiles.valid():
        if plan.pingpong:
            shared.turn.wait(consumer, turn)
            turn = turn ^ 1
        # Unrolled, a short loop would spill.
        for step in T.serial(tiles.steps(), unroll=False):
            shared.ring.full.wait(at.stage, at.phase)
            a: T.let = a_base + T.Cast("uint64", at.stage * (plan.a.nbytes // UNIT) + a_below)
            b: T.let = b_base + T.Cast("uint64", at.stage * (plan.b.nbytes // UNIT))
            T.ptx.wgmma.fence.sync.aligned()
            multiply(plan, acc, a, b, step)
            T.ptx.wgmma.commit_group.sync.aligned()
            # The step before this one is done: its stage is free.
            T.ptx.wgmma.wait_group.sync.aligned(1)
            if step > 0:
                release(plan, shared, last, thread)
            last = at.stage
            at.advance()
        if plan.pingpong:
            if thread == 0:
                shared.turn.arrive(1 - consumer)
        T.ptx.wgmma.wait_group.sync.aligned(0)
        release(plan, shared, last, thread)
        store_tile(epilogue)
        if plan.pingpong:
            # The other consumer's tile lies between.
            at.stage = at.stage + skipped
            at.phase = at.phase ^ laps
            if at.stage >= plan.stages:
                at.stage = at.stage - plan.stages
                at.phase = at.phase ^ 1
            tiles.advance(2)
        else:
            tiles.advance(1)
    epilogue.drain()
    T.cuda.warp_sync()
