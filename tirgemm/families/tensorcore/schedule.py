"""Steps of a schedule that the tensor-core families share: blocks on the grid, tiles in shared memory, stores.

Each takes the Schedule and does one thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tirgemm.families.tensorcore.tiling import Side, Tiling
from tirgemm.gemm import Range

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

SHARED = "shared.dyn"
# Loops of the ``gemm`` block that the grid takes: batch, part, block row, block column.
GRID_LOOPS = 4
# Axes and extents of a block's threads, outermost first.
Axes = Sequence[tuple[str, int]]


def place_on_grid(sch: Schedule, tiling: Tiling, block: Any, inner: Sequence[Any]) -> int:
    """Bind the blocks' loops to the grid, ``raster`` columns of blocks at a time; how many loops are left of them.

    ``inner`` are the other loops in the order that they shall have. The grid is one-dimensional, or three-dimensional
    where m is a range: nothing then divides by a size in m.
    """
    z, part, i, j = sch.get_loops(block)[:GRID_LOOPS]
    j_outer, j_inner = sch.split(j, [None, tiling.raster])
    sch.reorder(z, part, j_outer, i, j_inner, *inner)
    if isinstance(tiling.gemm.m, Range):
        grid = {"z": sch.fuse(z, part), "y": j_outer, "x": sch.fuse(i, j_inner)}
    else:
        grid = {"x": sch.fuse(z, part, j_outer, i, j_inner)}
    for axis, loop in grid.items():
        sch.bind(loop, f"blockIdx.{axis}")
    return len(grid)


def share_tile(sch: Schedule, side: Side, step: Any) -> None:
    """Copy the block's tile of an operand to shared memory at every step of k, its rows as the layout says."""
    tile = sch.get_sblock(f"{side.operand}_tile")
    sch.set_scope(tile, 0, SHARED)
    sch.compute_at(tile, step, preserve_unit_loops=True)
    if side.layout.pad:
        # The stride is the first from a row on that leaves a padded row modulo twice as much.
        row, padded = (length * 8 for length in (side.runs, side.layout.stride))
        sch.storage_align(tile, 0, 4, 2 * row, padded)


def copy_by_all_threads(sch: Schedule, side: Side, axes: Axes) -> None:
    """Spread the copy of a tile over the block's threads as ``side.copy`` says; a vector becomes a block of its own."""
    tile = sch.get_sblock(f"{side.operand}_tile")
    _, vector = sch.split(sch.get_loops(tile)[-1], [None, side.width])
    row, place, part = sch.get_loops(sch.blockize(vector))[-3:]
    outer, across = sch.split(place, [None, side.across])
    sch.reorder(outer, row, across, part)
    _, *threads = sch.split(sch.fuse(outer, row, across, part), [None, *(extent for _, extent in axes)])
    for (axis, _), loop in zip(axes, threads, strict=True):
        sch.bind(loop, axis)
