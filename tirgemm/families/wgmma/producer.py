# mypy: ignore-errors
# ruff: noqa: N812
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""The producer: one thread that fills stage after stage by TMA."""

from __future__ import annotations

from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.script import tirx as T

_LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_MULTICAST = ".multicast::cluster"


def load(plan, tensor_map, tile, memory, full, stage, k, mn, matrix, rank):
    """Load this block's part of a tile: for the other block of the cluster too, where both need it."""
    shared = tile.peers > 1
    first = rank * tile.rows_loaded if shared else 0
    batched = plan.gemm.batch > 1
    name = _LOAD.format(rank=3 if batched else 2) + (_MULTICAST if shared else "")
    for slab in range(tile.slabs):
        place = (k + slab * tile.width, mn + first) if tile.k_major else (mn + slab * tile.width, k + first)
        to = memory.ptr_to([stage, slab * tile.slab + first * tile.width])
        mask = (T.uint16(2**tile.peers - 1),) if shared else ()
        where = (*place, matrix) if batched else place
        T.evaluate(T.ptx[name](to, T.address_of(tensor_map), *where, full.ptr_to([stage]), *mask))


@T.inline
def produce(plan, args, shared, tiles, rank):
    """One thread: fill stage after stage, tile after tile."""
    T.ptx.prefetch.tensormap(T.address_of(args.maps["a"]))
    T.ptx.prefetch.tensormap(T.address_of(args.maps["b"]))
    at = PipelineState(plan.stages, 1)
    while tiles.valid():
        for step in T.serial(tiles.steps(), unroll=False):
            shared.ring.empty.wait(at.stage, at.phase)
            shared.ring.full.arrive(at.stage, plan.stage_bytes)
            k = T.meta_var(tiles.first_k() + step * plan.tile_k)
            load(plan, args.maps["a"], plan.a, shared.a, shared.ring.full, at.stage, k, tiles.m0, tiles.matrix, rank)
            load(plan, args.maps["b"], plan.b, shared.b, shared.ring.full, at.stage, k, tiles.n0, tiles.matrix, rank)
            at.advance()
        tiles.advance(1)
