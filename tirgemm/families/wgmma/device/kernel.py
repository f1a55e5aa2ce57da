# mypy: ignore-errors
# ruff: noqa: N812, PLR5501, SIM102
# The decorated functions are TVMScript, which is parsed and never run as Python.
"""The GEMM kernel in TIRx: one producer warpgroup feeds a ring of stages by TMA or copies, consumers multiply by wgmma.

A stage is a tile of each operand. ``full`` barriers count bytes that arrived or threads that copied them, ``empty``
ones the consumers that have read a stage, in every block of the cluster that the stage's data went to. In ping-pong a
third pair of barriers lets one consumer multiply while the other stores. Sources: PTX ISA, "Asynchronous Warpgroup
Level Matrix Instructions" and "Tensor copies"; the schedules are those of CUTLASS's sm90 warp-specialised kernels.
"""

from __future__ import annotations

from tvm.script import tirx as T

from tirgemm.families.wgmma.device.consumer import consume
from tirgemm.families.wgmma.device.copier import produce_by_copies
from tirgemm.families.wgmma.device.producer import prefetch_maps, produce
from tirgemm.families.wgmma.device.raster import Tiles
from tirgemm.families.wgmma.device.shared_memory import Shared, cluster_sync
from tirgemm.families.wgmma.planning.launch import SYMBOL
from tirgemm.families.wgmma.planning.registers import registers


def gemm_kernel(plan, arguments):
    """The PrimFunc of ``plan``; ``arguments`` declares its parameters once it is open."""
    dealt = registers(plan)

    @T.prim_func
    def kernel():
        T.func_attr({"global_symbol": SYMBOL})
        args = T.meta_var(arguments())
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": plan.resident})
        if plan.cluster.size > 1:
            rank_register = T.cta_id_in_cluster([plan.cluster.size])
        cta = T.cta_id([args.dim(plan.grid.blocks)])
        warpgroup = T.warpgroup_id([plan.warpgroups.consumers + 1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        # Copied once: every use of the identifier would read the special register again.
        rank_copy: T.int32
        if plan.cluster.size > 1:
            rank_copy = rank_register
        rank = T.meta_var(rank_copy if plan.cluster.size > 1 else 0)
        # While another thread sets up the barriers.
        if warpgroup == 1:
            if warp == 0:
                if lane == 0:
                    prefetch_maps(args)
        shared = T.meta_var(Shared(plan))
        # Computed once where m is known only at the call.
        rows: T.let[T.int32] = T.Cast("int32", args.dim(plan.grid.tiles_m))
        columns: T.let[T.int32] = T.Cast("int32", args.dim(plan.grid.tiles_n))
        clusters: T.let[T.int32] = T.Cast("int32", args.dim(plan.grid.clusters))
        block = T.meta_var(cta // plan.cluster.size)
        tiles = T.meta_var(Tiles(plan, block, rank, rows, columns, clusters))
        if plan.cluster.writes_partials:
            # The second kernel may take its place; it waits for this one's end.
            T.ptx.griddepcontrol.launch_dependents()
        T.ptx.fence.mbarrier_init.release.cluster()
        T.ptx.fence.proxy.async_.shared__cta()
        cluster_sync(plan)
        if warpgroup == 0:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](dealt.producer)
            if plan.loads.copies:
                tiles.start(0)
                produce_by_copies(plan, args, shared, tiles, warp * 32 + lane)
            else:
                if warp == 0:
                    if lane == 0:
                        tiles.start(0)
                        produce(plan, args, shared, tiles)
                    T.cuda.warp_sync()
            if plan.cluster.adds_parts:
                cluster_sync(plan)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](dealt.consumer)
            consumer: T.let = warpgroup - 1
            if plan.warpgroups.pingpong:
                tiles.start(consumer * tiles.clusters)
            else:
                tiles.start(0)
            consume(plan, args, shared, tiles, rank, consumer, warp, lane)
        if plan.cluster.size > 1:
            # Until then a block's shared memory is read or written and its barriers are signalled by its peers.
            cluster_sync(plan)

    return kernel
