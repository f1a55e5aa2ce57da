"""The knobs of ``wmma`` and their choices for a problem."""

from __future__ import annotations

from tirgemm.config import Knob, Space, Value
from tirgemm.families.tensorcore.names import COPY, REPACK
from tirgemm.families.tensorcore.tiling import OPERANDS, RUN, copy_width
from tirgemm.gemm import Gemm

_TILES = (16, 32, 64, 128, 256)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
# Steps of k below which cutting k is not offered: a part has at least two of the shortest.
_LEAST_PART = 64


def space(gemm: Gemm) -> Space:
    """Every knob with its choices, simplest first.

    tile_m, tile_n, tile_k: outputs of a block and its step in k. warps_m, warps_n: warps that share the tile. stages:
    steps of k in shared memory. sets: fragments of the next 16 of k are loaded while products are computed, or not.
    pad: elements after each row of a shared tile. load: how operands reach it: as they lie, or after a pass that aligns
    their rows. split: parts of k that blocks of their own sum. raster: blocks along n that are neighbours in time.
    resident: blocks that an SM must hold, which bounds a thread's registers; 0 leaves them to the compiler.
    """
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("tile_m", _up_to(gemm.m_max)),
        ("tile_n", _up_to(gemm.n)),
        ("tile_k", (16, 32, 64)),
        ("warps_m", (1, 2, 4)),
        ("warps_n", (1, 2, 4)),
        ("stages", (2, 3, 4)),
        ("sets", (1, 2)),
        ("pad", (0, 8, 16)),
        ("load", loads(gemm)),
        ("split", tuple(s for s in _SPLITS if s == 1 or gemm.k >= s * _LEAST_PART)),
        ("raster", (1, 2, 4, 8, 16)),
        ("resident", (0, 1, 2, 3)),
    )
    return Space("wmma", tuple(Knob(name, choices) for name, choices in knobs))


def loads(gemm: Gemm) -> tuple[str, ...]:
    """The ways to load that a problem has: only rows that 16-byte copies do not suit are worth copying first."""
    widths = [copy_width(gemm, operand) for operand in OPERANDS]
    if min(widths) == 1:
        return (REPACK,)
    return (COPY,) if min(widths) == RUN else (COPY, REPACK)


def _up_to(size: int) -> tuple[int, ...]:
    """Tiles that a dimension of ``size`` can use: none more than twice too large, the smallest always."""
    return tuple(t for t in _TILES if t < 2 * size or t == _TILES[0])
