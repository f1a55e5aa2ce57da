# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""TMA producer: one thread that fills stage after stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.script import tirx as T

from tirgemm.families.wgmma.device.recorder import recorder
from tirgemm.families.wgmma.planning.names import EVICT_FIRST, EVICT_LAST, REPACK
from tirgemm.families.wgmma.planning.span_kinds import LOAD, WAIT

_LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_MULTICAST, _HINT = ".multicast::cluster", ".L2::cache_hint"
# What createpolicy.fractional gives for the whole of the data, as CUTLASS's TMA::CacheHintSm90 has it.
POLICIES = {EVICT_FIRST: 0x12F0000000000000, EVICT_LAST: 0x14F0000000000000}


@dataclass(frozen=True)
class TilePart:
    """One operand's tile as a block loads it: the operand, the kernel's arguments, the tile, its memory and the
    barriers of full stages; the block's ``rank`` among those that share the tile, and the ``mask`` of those in the
    cluster."""

    operand: Any
    args: Any
    tile: Any
    memory: Any
    full: Any
    rank: Any
    mask: Any


def load(plan, part, stage, k, mn, matrix):
    """Load this block's part of a tile: for the other blocks of the cluster too that need the tile."""
    operand, args, tile, memory, full = part.operand, part.args, part.tile, part.memory, part.full
    shared = tile.peers > 1
    first = part.rank * tile.rows_loaded if shared else 0
    batched = plan.gemm.batch > 1
    policy = plan.loads.policy(operand)
    hint = (T.uint64(POLICIES[policy]),) if policy else ()
    name = _LOAD.format(rank=3 if batched else 2) + (_MULTICAST if shared else "") + (_HINT if policy else "")
    for slab in range(tile.slabs):
        place = (k + slab * tile.width, mn + first) if tile.k_major else (mn + slab * tile.width, k + first)
        to = memory.ptr_to([stage, slab * tile.slab + first * tile.width])
        mask = (part.mask,) if shared else ()
        where = (*place, matrix) if batched else place
        tensor_map = T.address_of(args.maps[operand])
        T.evaluate(T.ptx[name](to, tensor_map, *where, full.ptr_to([stage]), *mask, *hint))


def tile_part(plan, args, shared, tiles, side):
    """The part of the left or the right operand's tile that this block loads."""
    left = side == "left"
    operand = plan.orientation.left_operand if left else plan.orientation.right_operand
    tile, memory = (plan.left, shared.left) if left else (plan.right, shared.right)
    # The left operand's tile is shared along the tile's columns, the right one's along its rows.
    rank, other = (tiles.rank_n, tiles.rank_m) if left else (tiles.rank_m, tiles.rank_n)
    mask = T.uint16(2**tile.peers - 1)
    if plan.cluster.shares_both and tile.peers > 1:
        # Ranks count down a column of the cluster's tiles first.
        apart, shift = (plan.cluster_m, other) if left else (1, other * plan.cluster_m)
        mask = T.Cast("uint16", T.shift_left(T.int32(sum(1 << peer * apart for peer in range(tile.peers))), shift))
    return TilePart(operand, args, tile, memory, shared.ring.full, rank, mask)


def prefetch_maps(args):
    """Bring the descriptors near, before the first load needs them."""
    for tensor_map in args.maps.values():
        T.evaluate(T.ptx.prefetch.tensormap(T.address_of(tensor_map)))


@T.inline
def produce(plan, args, shared, tiles):
    """One thread: fill stage after stage, tile after tile."""
    left = T.meta_var(tile_part(plan, args, shared, tiles, "left"))
    right = T.meta_var(tile_part(plan, args, shared, tiles, "right"))
    record = T.meta_var(recorder(args, tiles, 0, None))
    at = PipelineState(plan.stages, 1)
    if plan.load == REPACK:
        # Until then the copies that TMA reads are being written.
        T.ptx.griddepcontrol.wait()
    while tiles.valid():
        record.begin_tile()
        for step in T.serial(tiles.steps(), unroll=False):
            shared.ring.empty.wait(at.stage, at.phase)
            record.lap(WAIT, step)
            shared.ring.full.arrive(at.stage, args.dim(plan.loads.tma_bytes))
            k = T.meta_var(tiles.first_k() + step * plan.tile_k)
            load(plan, left, at.stage, k, tiles.row0, tiles.matrix)
            load(plan, right, at.stage, k, tiles.column0, tiles.matrix)
            record.lap(LOAD, step)
            at.advance()
        record.end_tile()
        tiles.advance(1)
    record.end()
