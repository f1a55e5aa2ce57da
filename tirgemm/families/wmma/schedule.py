"""The schedule of ``wmma``: from the staged problem to blocks of one instruction each, one small step a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.families.tensorcore.pipeline import INNER, STEPS
from tirgemm.families.tensorcore.schedule import (
    GRID_LOOPS,
    SHARED,
    Axes,
    copy_by_all_threads,
    place_on_grid,
    share_tile,
)
from tirgemm.families.tensorcore.tiling import RUN, STAGED_PAD
from tirgemm.families.wmma.fragment_blocks import SYMBOL, StagedWmma
from tirgemm.families.wmma.tile import FRAGMENT, WmmaTiling
from tirgemm.hardware import WARP

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

# The block that brings sums to shared memory.
STAGED_SUMS = f"acc_local_{SHARED}"
_LANES, _WARPS = "threadIdx.x", "threadIdx.y"


@dataclass(frozen=True)
class WmmaLoops:
    """The loops of the ``gemm`` block once placed on the machine."""

    warp: Any
    step: Any
    depth: Any
    fragments: tuple[Any, ...]
    element: Any
    outer: int
    """Loops around what a warp does: those of the grid, and the loop over warps."""


def scheduled(tiling: WmmaTiling) -> Schedule:
    """The schedule in which everything is spelled out, one instruction's work a block: what the kernel means."""
    from tvm import IRModule
    from tvm.s_tir import Schedule

    sch = Schedule(IRModule({SYMBOL: StagedWmma(tiling).primfunc()}), debug_mask="none")
    sch.work_on(SYMBOL)
    nest = place_on_machine(sch, tiling)
    sch.set_scope("gemm", 0, "local")
    sch.cache_read(sch.get_sblock("epilogue"), "acc_local", SHARED)
    load_fragments(sch, nest)
    for side in tiling.sides:
        share_tile(sch, side, nest.step)
        copy_by_all_threads(sch, side, thread_axes(tiling))
    multiply_fragments(sch, nest)
    send_sums_through_shared(sch, nest)
    store_rows(sch, tiling)
    store_fragments(sch)
    sch.annotate(nest.step, STEPS, tiling.stages)
    sch.annotate(nest.depth, INNER, tiling.sets)
    return sch


def thread_axes(tiling: WmmaTiling) -> Axes:
    """A block's threads: warps, then lanes."""
    return ((_WARPS, tiling.threads // WARP), (_LANES, WARP))


def place_on_machine(sch: Schedule, tiling: WmmaTiling) -> WmmaLoops:
    """Bind blocks to the grid and warps to threads; lanes belong to the instructions."""
    block = sch.get_sblock("gemm")
    wi, wj, fi, fj, step, depth, *elements = sch.get_loops(block)[GRID_LOOPS:]
    grid = place_on_grid(sch, tiling, block, (wi, wj, step, depth, fi, fj, *elements))
    warp = sch.fuse(wi, wj)
    sch.bind(warp, _WARPS)
    return WmmaLoops(warp, step, depth, (fi, fj), elements[0], grid + 1)


def send_sums_through_shared(sch: Schedule, nest: WmmaLoops) -> None:
    """Behind the last step store a row of every warp's fragments to shared memory, from where ``epilogue`` reads it."""
    epilogue = sch.get_sblock("epilogue")
    staged = sch.get_sblock(STAGED_SUMS)
    for block in (staged, epilogue):
        sch.reverse_compute_at(block, nest.warp, preserve_unit_loops=True)
    # Of a warp's loops in the epilogue: ..., fragment row, row, fragment column, column.
    sch.compute_at(staged, sch.get_loops(epilogue)[-4], preserve_unit_loops=True)


def store_fragments(sch: Schedule) -> None:
    """Every warp stores its own fragments. Last, because it hides from the schedule that all of them are stored."""
    staged = sch.get_sblock(STAGED_SUMS)
    *_, wi, wj, fi, row, fj, column = sch.get_loops(staged)
    sch.reorder(wi, wj, fi, fj, row, column)
    sch.bind(sch.fuse(wi, wj), _WARPS)
    sch.unroll(fj)
    # The stride from a row to the next: a multiple of 16 elements and the pad.
    sch.storage_align(sch.blockize(row), 0, -3, FRAGMENT, STAGED_PAD)


def load_fragments(sch: Schedule, nest: WmmaLoops) -> None:
    """Read a warp's factors of 16 of k from the tiles."""
    for number in range(2):
        fragment = sch.cache_read(sch.get_sblock("gemm"), number, "local")
        sch.compute_at(fragment, nest.depth, preserve_unit_loops=True)
        rows, runs, element = sch.get_loops(fragment)[-3:]
        rows, row = sch.split(rows, [None, FRAGMENT])
        runs, run = sch.split(runs, [None, FRAGMENT // RUN])
        sch.reorder(rows, runs, row, run, element)
        sch.blockize(row)
        for loop in (rows, runs):
            sch.unroll(loop)


def multiply_fragments(sch: Schedule, nest: WmmaLoops) -> None:
    """Multiply fragments by one instruction each, everything of a step written out."""
    init = sch.decompose_reduction(sch.get_sblock("gemm"), nest.step)
    *around, element, _, _, _ = sch.get_loops(init)
    sch.blockize(element)
    sch.blockize(nest.element)
    for loop in (*nest.fragments, *around[nest.outer :]):
        sch.unroll(loop)


def store_rows(sch: Schedule, tiling: WmmaTiling) -> None:
    """Write D row by row, a vector a lane."""
    epilogue = sch.get_sblock("epilogue")
    *_, fi, row, fj, column = sch.get_loops(epilogue)
    sch.unroll(fi)
    # The parts of a split have guards of their own for every element.
    width = tiling.width_d if tiling.split == 1 else 1
    _, lane, vector = sch.split(sch.fuse(row, fj, column), [None, WARP, width])
    sch.bind(lane, _LANES)
    sch.vectorize(vector)
