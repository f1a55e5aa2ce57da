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
_MULTICAST, HINT = ".multicast::cluster", ".L2::cache_hint"
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
    """Load this block's part of a tile: for the other blocks of the cluster too that need the tile. Of a tile that
    reaches beyond the matrix along m or n only rows and slabs that are inside."""
    tile, operand = part.tile, part.operand
    first = part.rank * tile.rows_loaded if tile.peers > 1 else 0
    within, whole = outputs_loaded(plan, part, mn), plan.loads.rows_loaded(operand)
    for slab in range(tile.slabs):
        place = (k + slab * tile.width, mn + first) if tile.k_major else (mn + slab * tile.width, k + first)
        box = (plan, part, stage, slab, first, place, matrix)
        if not tile.k_major:
            needed = within > slab * tile.width
            if needed is True:
                load_box(*box, operand)
            elif needed is not False:
                with T.If(needed), T.Then():
                    load_box(*box, operand)
        elif isinstance(within, int) and (tile.peers == 1 or within == tile.extent):
            load_box(*box, operand)
        else:
            with T.If(within - first >= whole):
                with T.Then():
                    load_box(*box, operand)
                if f"{operand}_edge" in part.args.maps:
                    with T.Else(), T.If(within > first), T.Then():
                        load_box(*box, f"{operand}_edge")


def load_box(plan, part, stage, slab, first, place, matrix, name):
    """Load one box by the tensor map ``name``: into row ``first`` of a slab, from ``place`` on."""
    tile = part.tile
    batched = plan.gemm.batch > 1
    policy = plan.loads.policy(part.operand)
    hint = (T.uint64(POLICIES[policy]),) if policy else ()
    words = (_MULTICAST if tile.peers > 1 else "") + (HINT if policy else "")
    to = part.memory.ptr_to([stage, slab * tile.slab + first * tile.width])
    mask = (part.mask,) if tile.peers > 1 else ()
    where = (*place, matrix) if batched else place
    load_tile = T.ptx[_LOAD.format(rank=3 if batched else 2) + words]
    T.evaluate(load_tile(to, T.address_of(part.args.maps[name]), *where, part.full.ptr_to([stage]), *mask, *hint))


def outputs_loaded(plan, part, mn):
    """How many outputs along the operand's side of D are loaded of the tile that begins at ``mn``."""
    known = plan.loads.outputs_loaded(part.operand)
    if known is not None:
        return known
    return T.max(T.min(part.args.dim(plan.loads.outputs_along(part.operand)) - mn, part.tile.extent), 0)


def bytes_of_stage(plan, *parts):
    """Bytes that come by TMA for one stage, of ``parts``: each an operand's, and its tile's first row or column."""
    return sum(
        plan.loads.tma_bytes(part.operand, outputs_loaded(plan, part, mn), lambda n, by: T.truncdiv(n + (by - 1), by))
        for part, mn in parts
    )


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
            shared.ring.full.arrive(at.stage, bytes_of_stage(plan, (left, tiles.row0), (right, tiles.column0)))
            k = T.meta_var(tiles.first_k() + step * plan.tile_k)
            load(plan, left, at.stage, k, tiles.row0, tiles.matrix)
            load(plan, right, at.stage, k, tiles.column0, tiles.matrix)
            record.lap(LOAD, step)
            at.advance()
        record.end_tile()
        tiles.advance(1)
    record.end()
