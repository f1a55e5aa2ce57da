"""The knobs of ``simt`` and their choices for a problem."""

from __future__ import annotations

from dataclasses import replace

from tirgemm.config import Knob, Space, Value
from tirgemm.families.common.alignment import access_width
from tirgemm.families.common.parameters import tiles_reach
from tirgemm.families.simt.tiling import GRIDS, LANE_ORDERS, PIPELINES, READS, transposes
from tirgemm.gemm import Gemm, Range
from tirgemm.workload import index_dtype

_BLOCKS = (8, 16, 32, 64, 128, 256)
_DEPTHS = (8, 16, 32)
_THREAD_TILES = (1, 2, 4, 8, 16)
_MEANINGS = {
    "block_m": "rows of D that a thread block computes",
    "block_n": "columns of D that a thread block computes",
    "block_k": "elements of k in one step of the main loop",
    "thread_m": "rows of D that a thread computes",
    "thread_n": "columns of D that a thread computes",
    "lanes_n": "threads of a warp side by side along n; the others lie along m",
    "piece": "the most neighbouring outputs of a thread along an axis; a larger thread tile is pieces strided over the "
    "block (virtual threads)",
    "vector": "elements of one load from global memory",
    "pad": "elements after each row of a tile that is transposed on its way to shared memory",
    "unroll": "steps of k that are written out",
    "pipeline": "how copies overlap arithmetic: not at all (none), through registers (register), with a second tile in "
    "shared memory (double), or by cp.async into so many tiles (async2 to async4)",
    "raster": "blocks along n that are neighbours in time",
    "resident": "blocks that an SM should hold, which bounds a thread's registers unless they would spill for it; 0 "
    "leaves them to the compiler",
    "reads": "where an FMA's operands come from: fragments in registers that wide loads fill (fragments), scalar loads "
    "(scalars), loads at every FMA (outer, inner), global memory (global)",
    "lane_order": "lanes of a warp lie in rows along n (row), or in Z order, 16 of them as 4 x 4 (z)",
    "grid": "blocks are launched in one dimension (line), or as rows and columns (plane)",
    "barriers": "barriers in a step of k",
}


def space(gemm: Gemm) -> Space:
    """Every knob with its choices, simplest first.

    A config from before reads, lane_order, grid and barriers is the one with the first choice of each. Choices that
    only a rung of the ladder makes are not among these but in ``ladder_space``: no search need try them.
    """
    turned = transposes(gemm, "a") or transposes(gemm, "b")
    width = max(access_width(gemm, "a"), access_width(gemm, "b"))
    if width > 4 and _wide_offsets(gemm):
        width = 4  # CUDA's vectors of 64-bit integers have four at most, and such a load has an offset for each element
    vectors = tuple(v for v in (1, 2, 4, 8) if v <= width)
    # cp.async moves at least four bytes and converts nothing.
    pipelines = tuple(p for p in PIPELINES if gemm.dtype == "f32" or not p.startswith("async"))
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("block_m", _up_to(gemm.m_max)),
        ("block_n", _up_to(gemm.n)),
        ("block_k", _DEPTHS),
        ("thread_m", _THREAD_TILES),
        ("thread_n", _THREAD_TILES),
        ("lanes_n", (8, 4, 16, 32, 2)),
        ("piece", (16, 8, 4, 2, 1)),
        ("vector", vectors),
        ("pad", (0, 4, 8) if turned else (0,)),
        ("unroll", (8, 16)),
        ("pipeline", pipelines),
        ("raster", (1, 2, 4, 8, 16)),
        ("resident", (0, 1, 2, 3, 4)),
        ("reads", READS[:1]),
        ("lane_order", LANE_ORDERS),
        # Nothing may divide by a size in m: a range's blocks are a plane.
        ("grid", GRIDS[1:] if isinstance(gemm.m, Range) else GRIDS[:1]),
        ("barriers", (2, 1)),
    )
    return Space("simt", tuple(Knob(name, choices, _MEANINGS[name]) for name, choices in knobs))


def ladder_space(gemm: Gemm) -> Space:
    """The space with the choices that only rungs make: what ``instantiate`` takes."""
    rungs: dict[str, tuple[Value, ...]] = {"lanes_n": (1,), "reads": READS[1:], "grid": GRIDS}
    knobs = tuple(
        replace(knob, choices=tuple(dict.fromkeys((*knob.choices, *rungs.get(knob.name, ())))))
        if knob.name != "grid" or not isinstance(gemm.m, Range)
        else knob
        for knob in space(gemm).knobs
    )
    return Space("simt", knobs)


def _wide_offsets(gemm: Gemm) -> bool:
    """Whether some config's offsets take 64 bits."""
    largest, depth = _BLOCKS[-1], -(-gemm.k // _DEPTHS[-1]) * _DEPTHS[-1]
    return index_dtype(gemm, tiles_reach(gemm, largest, largest, depth)) == "int64"


def _up_to(size: int) -> tuple[int, ...]:
    """Block sizes that a dimension of ``size`` can use: none more than twice too large, the smallest always."""
    return tuple(b for b in _BLOCKS if b < 2 * size or b == _BLOCKS[0])
