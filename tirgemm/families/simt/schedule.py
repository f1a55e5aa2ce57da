"""The schedule: from the staged problem to a kernel, one small step a function.

Each step takes the Schedule and does one thing that a rung of the ladder can leave out or do otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.families.common.launch_bounds import bounded
from tirgemm.families.simt.tile_blocks import SYMBOL, StagedProblem
from tirgemm.families.simt.tiling import ThreadTiling, transposes
from tirgemm.gemm import Gemm, Operand

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.s_tir import Schedule

_SHARED = "shared.dyn"


@dataclass(frozen=True)
class Nest:
    """The loops of the ``gemm`` block once placed on the machine."""

    thread: Any
    step: Any
    k: Any
    tile: tuple[Any, ...]
    outer: int
    """Loops around what a thread does: those of the grid, and the thread loop."""


def scheduled(gemm: Gemm, tiling: ThreadTiling) -> IRModule:
    """The IRModule of one kernel."""
    from tvm import IRModule
    from tvm.s_tir import Schedule

    sch = Schedule(IRModule({SYMBOL: StagedProblem(gemm, tiling).primfunc()}), debug_mask="none")
    sch.work_on(SYMBOL)
    nest = place_on_machine(sch, tiling)
    keep_sums_in_registers(sch, nest)
    if tiling.fragments:
        load_fragments(sch, nest, tiling)
    for operand in ("a", "b"):
        if tiling.shares:
            share_tile(sch, nest, operand)
            copy_by_all_threads(sch, operand, gemm, tiling)
            pad_rows(sch, operand, tiling)
        else:
            sch.compute_inline(sch.get_sblock(f"{operand}_tile"))
    overlap_copies(sch, nest, tiling)
    unroll_tile(sch, nest, tiling)
    store_vectors(sch, nest, tiling)
    if not tiling.resident:
        return sch.mod
    return IRModule({SYMBOL: bounded(sch.mod[SYMBOL], tiling.resident)})


def place_on_machine(sch: Schedule, tiling: ThreadTiling) -> Nest:
    """Bind blocks to the grid, ``raster`` columns of them at a time, and warps and lanes to threads.

    The grid is one-dimensional, or three-dimensional as a plane: nothing then divides by a size in m. Within a step k
    is outside the thread tile (outer products), or inside it (inner products).
    """
    z, i, vi, wi, li, ti, j, vj, wj, lj, tj, step, k = sch.get_loops(sch.get_sblock("gemm"))
    j_outer, j_inner = sch.split(j, [None, tiling.raster])
    lanes = lane_loops(sch, li, lj, tiling)
    tile = (vi, ti, vj, tj)
    order = (*tile, k) if tiling.reads == "inner" else (k, *tile)
    sch.reorder(z, j_outer, i, j_inner, wi, wj, *lanes, step, *order)
    thread = sch.fuse(wi, wj, *lanes)
    if tiling.plane:
        grid = {"z": z, "y": j_outer, "x": sch.fuse(i, j_inner)}
    else:
        grid = {"x": sch.fuse(z, j_outer, i, j_inner)}
    for axis, block in grid.items():
        sch.bind(block, f"blockIdx.{axis}")
    sch.bind(thread, "threadIdx.x")
    return Nest(thread, step, k, tile, len(grid) + 1)


def lane_loops(sch: Schedule, li: Any, lj: Any, tiling: ThreadTiling) -> tuple[Any, ...]:
    """The loops over a warp's lanes, outermost first: rows along n, or Z order.

    In Z order the lowest bits of a lane are one of n, two of m, one of n: of 16 lanes each 8 share 2 rows of A or 2
    columns of B pairwise, and two quarters of the warp are served by one pass over the banks.
    """
    if tiling.lane_order == "row":
        return (li, lj)
    inner_m = min(4, tiling.lanes_m)
    li_outer, li_inner = sch.split(li, [None, inner_m])
    lj_outer, lj_middle, lj_inner = sch.split(lj, [None, min(2, tiling.lanes_n // 2), 2])
    return (lj_outer, li_outer, lj_middle, li_inner, lj_inner)


def keep_sums_in_registers(sch: Schedule, nest: Nest) -> None:
    """Every thread accumulates its own outputs and writes them itself."""
    sch.reverse_compute_at(sch.get_sblock("epilogue"), nest.thread, preserve_unit_loops=True)
    sch.set_scope("gemm", 0, "local")


def load_fragments(sch: Schedule, nest: Nest, tiling: ThreadTiling) -> None:
    """Read each step's row of A and of B from shared memory once, then multiply from registers.

    In accesses of up to 16 bytes where the tiles lie k-major, else one element at a time.
    """
    for number, width in enumerate(tiling.fragment_widths):
        fragment = sch.cache_read(sch.get_sblock("gemm"), number, "local")
        sch.compute_at(fragment, nest.k, preserve_unit_loops=True)
        _, inner = sch.split(sch.get_loops(fragment)[-1], [None, width])
        sch.vectorize(inner)
        for loop in sch.get_loops(fragment)[nest.outer + 2 : -1]:
            sch.unroll(loop)


def share_tile(sch: Schedule, nest: Nest, operand: Operand) -> None:
    """Copy the block's tile of ``operand`` to shared memory at every step of k."""
    tile = sch.get_sblock(f"{operand}_tile")
    sch.set_scope(tile, 0, _SHARED)
    sch.compute_at(tile, nest.step, preserve_unit_loops=True)


def copy_by_all_threads(sch: Schedule, operand: Operand, gemm: Gemm, tiling: ThreadTiling) -> None:
    """Spread the copy over the block's threads, neighbours along the operand's contiguous dimension, in vectors."""
    tile = sch.get_sblock(f"{operand}_tile")
    k, block, *inside = sch.get_loops(tile)[-6:]
    order = [*inside, k] if transposes(gemm, operand) else [k, *inside]
    sch.reorder(block, *order)
    width = tiling.width_a if operand == "a" else tiling.width_b
    _, thread, vector = sch.split(sch.fuse(*order), [None, tiling.threads, width])
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)


def pad_rows(sch: Schedule, operand: Operand, tiling: ThreadTiling) -> None:
    """Let the rows of a shared tile start in different banks."""
    pad, row = (tiling.pad_a, tiling.block_m) if operand == "a" else (tiling.pad_b, tiling.block_n)
    if pad:
        # The stride is the first from ``row`` on that leaves ``row + pad`` modulo twice the row: pads up to a row work.
        sch.storage_align(sch.get_sblock(f"{operand}_tile"), 0, 2, 2 * row, row + pad)


def overlap_copies(sch: Schedule, nest: Nest, tiling: ThreadTiling) -> None:
    """Let copies of later steps run while this one computes, as ``pipeline`` says.

    ``register`` and ``double``: global loads, compute, then stores to shared memory, to the same tile or to the other
    of two. ``asyncN``: cp.async, N - 1 steps ahead.
    """
    if tiling.prefetches:
        for operand in ("a", "b"):
            tile = sch.get_sblock(f"{operand}_tile")
            sch.annotate(tile, "tirx.manifest_shared_memory_local_stage", 1)
            if tiling.pipeline == "double":
                sch.annotate(tile, "double_buffer_scope", 0)
        # Statements of a step: load A, store A, load B, store B, compute.
        sch.annotate(nest.step, "software_pipeline_stage", [0, 0, 0, 0, 1])
        sch.annotate(nest.step, "software_pipeline_order", [0, 3, 1, 4, 2])
    elif tiling.asynchronous:
        sch.annotate(nest.step, "software_pipeline_stage", [0, 0, tiling.buffers - 1])
        sch.annotate(nest.step, "software_pipeline_order", [0, 1, 2])
        sch.annotate(nest.step, "software_pipeline_async_stages", [0])


def unroll_tile(sch: Schedule, nest: Nest, tiling: ThreadTiling) -> None:
    """Unroll the thread tile and ``unroll`` steps of k: registers cannot be indexed."""
    gemm = sch.get_sblock("gemm")
    sch.decompose_reduction(gemm, nest.step)
    _, inner = sch.split(nest.k, [None, tiling.unroll])
    for loop in (inner, *nest.tile, *sch.get_loops(sch.get_sblock("gemm_init"))[nest.outer :]):
        sch.unroll(loop)


def store_vectors(sch: Schedule, nest: Nest, tiling: ThreadTiling) -> None:
    """Write D in vectors of ``width_d``."""
    epilogue = sch.get_sblock("epilogue")
    *_, last = sch.get_loops(epilogue)
    _, vector = sch.split(last, [None, tiling.width_d])
    sch.vectorize(vector)
    for loop in sch.get_loops(epilogue)[nest.outer : -1]:
        sch.unroll(loop)
