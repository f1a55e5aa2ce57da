"""Choices of the tensor-core families' knobs that are words. See a family's ``space.py`` for what each does."""

from __future__ import annotations

# How rows of a tile lie in shared memory.
NONE, PADDED, PERMUTED = "none", "padded", "permuted"
# How a warp's copies lie over global memory: whole 128-byte lines, or halves of them.
LINE, HALF = "line", "half"
# How operands reach shared memory: as they lie, or after a pass that aligns their rows.
COPY, REPACK = "copy", "repack"
# How D leaves: from the registers, or through shared memory by rows.
DIRECT, STAGED = "direct", "staged"

# What the knobs that mma and wmma share set.
# Knobs that a tiling has as they are.
CUT = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "split", "raster", "resident")
MEANINGS = {
    "tile_m": "rows of D that a thread block computes",
    "tile_n": "columns of D that a thread block computes",
    "tile_k": "elements of k in one step of the main loop",
    "warps_m": "warps of a block, one below the other along m",
    "warps_n": "warps of a block, side by side along n",
    "stages": "tiles of A and B in shared memory: one is multiplied while the others are on their way",
    "registers": "sets of fragments: with 2, one is loaded while the other is multiplied",
    "resident": "blocks that an SM should hold, which bounds a thread's registers unless they would spill for it",
    "load": "operands are copied as they lie (copy), or after a pass that aligns their rows (repack)",
    "split": "parts of k, added by a second kernel",
    "raster": "blocks along n that are neighbours in time",
}
