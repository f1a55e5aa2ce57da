# mypy: ignore-errors
# ruff: noqa: F821, N812, PLR5501, SIM102
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""Consumer warpgroup: multiplies stage after stage into registers, then stores its part of the tile."""

from __future__ import annotations

from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.script import tirx as T

from tirgemm.families.wgmma.device.epilogue import Epilogue, store_tile
from tirgemm.families.wgmma.device.partial_sums import (
    Accumulators,
    ReducedSums,
    add_cluster_parts,
    add_part,
    sync_consumers,
    write_dsmem,
)
from tirgemm.families.wgmma.device.recorder import recorder
from tirgemm.families.wgmma.device.shared_memory import cluster_sync
from tirgemm.families.wgmma.planning.span_kinds import ADD, DRAIN, EXCHANGE, MULTIPLY, STORE, TURN, WAIT
from tirgemm.families.wgmma.planning.tile import MMA_K, UNIT
from tirgemm.families.wgmma.planning.warpgroups import MMA_M, WARPGROUP


def encode(tile, base, memory):
    """The wgmma descriptor of a tile in stage 0."""
    pointer, swizzle = memory.ptr_to([0, 0]), tile.swizzle
    encoder = T.cuda.wgmma.encode_matrix_descriptor
    T.evaluate(encoder(T.address_of(base), pointer, tile.leading_offset, tile.stride_offset, swizzle))


def step_of_part(plan, step):
    """Steps of a part of k before this one."""
    return T.truncmod(step, plan.grid.split_steps) if plan.cluster.adds_in_turn else step


def multiply(plan, acc, a, b, step):
    """Issue the wgmmas of one stage; the first of a part overwrites the accumulators."""
    dtype, sums = plan.gemm.dtype, plan.gemm.acc
    instruction = T.ptx[f"wgmma.mma_async.sync.aligned.m{MMA_M}n{plan.tile_n}k{MMA_K}.{sums}.{dtype}.{dtype}"]
    count = plan.warpgroups.accumulator_registers // plan.warpgroups.blocks
    transposed = int(not plan.left.k_major), int(not plan.right.k_major)
    for number in range(plan.tile_k // MMA_K):
        for block in range(plan.warpgroups.blocks):
            registers = [acc.registers[block * count + i] for i in range(count)]
            left = a + T.uint64(plan.left.step(number) + plan.left.below(block * MMA_M))
            right = b + T.uint64(plan.right.step(number))
            adds = T.bool(True) if number else step_of_part(plan, step) > 0
            T.evaluate(instruction(*registers, left, right, adds, 1, 1, *transposed))


@T.inline
def release(plan, shared, tiles, stage, thread):
    """Tell every block that filled the stage that this consumer has read it."""
    if plan.cluster.shared_by == 1:
        if thread == 0:
            shared.ring.empty.arrive(stage)
    else:
        if thread < plan.cluster.shared_by:
            if plan.cluster.shares_both:
                # Those of its row and of its column of the cluster.
                if T.Or(
                    T.truncmod(thread, plan.cluster_m) == tiles.rank_m,
                    T.truncdiv(thread, plan.cluster_m) == tiles.rank_n,
                ):
                    shared.ring.empty.arrive(stage, remote=thread)
            else:
                shared.ring.empty.arrive(stage, remote=thread)


@T.inline
def consume(plan, args, shared, tiles, rank, consumer, warp, lane):
    """One warpgroup: multiply stage after stage into registers, then store the tile."""
    thread: T.let = warp * 32 + lane
    everyone: T.let = consumer * WARPGROUP + thread
    left_base: T.uint64
    right_base: T.uint64
    encode(plan.left, left_base, shared.left)
    encode(plan.right, right_base, shared.right)
    # Rows of the tile above this consumer's.
    row = T.meta_var(0 if plan.warpgroups.pingpong else consumer * plan.warpgroups.consumer_rows)
    below = T.meta_var(0 if plan.warpgroups.pingpong else consumer * plan.left.below(plan.warpgroups.consumer_rows))
    aside = T.meta_var(rank * plan.cluster.stored_columns if plan.cluster.adds_parts else 0)
    epilogue = T.meta_var(Epilogue(plan, args, shared, tiles, (row, aside), (consumer, warp, lane, thread)))
    record = T.meta_var(recorder(args, tiles, consumer + 1, thread == 0))
    at = PipelineState(plan.stages, 0)
    skipped = T.meta_var(plan.grid.tile_steps % plan.stages)
    laps = T.meta_var(plan.grid.tile_steps // plan.stages % 2)
    turn: T.int32
    if plan.warpgroups.pingpong:
        # The first consumer's turn comes at once: the phase before a barrier's first counts as complete.
        turn = 1 - consumer
        at.stage = consumer * skipped
        at.phase = consumer * laps
    last: T.int32
    last = 0
    while tiles.valid():
        record.begin_tile()
        # Declared here, so that they take no registers from the epilogue for the sake of the next tile.
        acc = T.meta_var(Accumulators(plan))
        sums = T.meta_var(ReducedSums(plan) if plan.cluster.adds_parts or plan.cluster.adds_in_turn else acc)
        if plan.warpgroups.pingpong:
            shared.turn.wait(consumer, turn)
            turn = turn ^ 1
            record.lap(TURN)
        # Unrolled, a short loop would spill.
        for step in T.serial(tiles.steps(), unroll=False):
            shared.ring.full.wait(at.stage, at.phase)
            record.lap(WAIT, step)
            a: T.let = left_base + T.Cast("uint64", at.stage * (plan.left.nbytes // UNIT) + below)
            b: T.let = right_base + T.Cast("uint64", at.stage * (plan.right.nbytes // UNIT))
            if plan.loads.copies:
                # cp.async wrote by the generic proxy; wgmma reads by the asynchronous one.
                T.ptx.fence.proxy.async_.shared__cta()
            T.ptx.wgmma.fence.sync.aligned()
            multiply(plan, acc, a, b, step)
            T.ptx.wgmma.commit_group.sync.aligned()
            # The step before this one is done: its stage is free.
            T.ptx.wgmma.wait_group.sync.aligned(1)
            if step > 0:
                release(plan, shared, tiles, last, thread)
            record.lap(MULTIPLY, step)
            last = at.stage
            at.advance()
            if plan.cluster.adds_in_turn:
                if step_of_part(plan, step + 1) == 0:
                    if step + 1 < plan.grid.steps:
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        add_part(plan, acc, sums, step + 1 == plan.grid.split_steps)
                        record.lap(ADD)
        if plan.warpgroups.pingpong:
            if lane == 0:
                shared.turn.arrive(1 - consumer)
        T.ptx.wgmma.wait_group.sync.aligned(0)
        release(plan, shared, tiles, last, thread)
        record.lap(DRAIN)
        if plan.cluster.adds_in_turn:
            add_part(plan, acc, sums, T.bool(False))
            record.lap(ADD)
        if plan.cluster.adds_parts:
            # The stages' memory is free once every consumer has read the last.
            sync_consumers(plan)
            write_dsmem(plan, shared, acc, everyone)
            cluster_sync(plan)
            record.lap(EXCHANGE)
            if plan.cluster.reducers < plan.split:
                if rank < plan.cluster.reducers:
                    add_cluster_parts(plan, shared, sums, rank, everyone)
                    record.lap(ADD)
                    store_tile(epilogue, sums)
                    record.lap(STORE)
            else:
                add_cluster_parts(plan, shared, sums, rank, everyone)
                record.lap(ADD)
                store_tile(epilogue, sums)
                record.lap(STORE)
        else:
            store_tile(epilogue, sums)
            record.lap(STORE)
        record.end_tile()
        if plan.warpgroups.pingpong:
            # The other consumer's tile lies between.
            at.stage = at.stage + skipped
            at.phase = at.phase ^ laps
            if at.stage >= plan.stages:
                at.stage = at.stage - plan.stages
                at.phase = at.phase ^ 1
            tiles.advance(2)
        else:
            if plan.cluster.adds_parts:
                # A block has one tile. Were there a way back, its accumulators would count as alive in the epilogue.
                break
            tiles.advance(1)
    epilogue.drain()
    record.end()
    T.cuda.warp_sync()
