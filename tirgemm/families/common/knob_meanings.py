"""Meanings of the knobs that several families have in common, for people who look at a config."""

from __future__ import annotations

COMMON: dict[str, str] = {
    "tile_m": "rows of D that a thread block computes at a time",
    "tile_n": "columns of D that a thread block computes at a time",
    "tile_k": "how much of k a thread block takes in one step",
    "stages": "tiles of both operands that shared memory holds at a time: the others are on their way meanwhile",
    "resident": "blocks that an SM should hold, which bounds a thread's registers unless it would spill for that",
    "split": "parts that k is cut into; they are computed side by side and added afterwards",
    "raster": "blocks along n that are neighbours in time, so that they share rows of A in L2",
}
# Of the families whose warps share a tile.
WARPS: dict[str, str] = {
    "warps_m": "warps of a block along the rows of its tile",
    "warps_n": "warps of a block along the columns of its tile",
    "registers": "sets of fragments in registers: with two, one is loaded while the other is multiplied",
    "load": "how operands reach shared memory: as they lie (copy), or after a pass that aligns their rows (repack)",
}
