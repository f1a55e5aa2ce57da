"""The knobs of ``mma`` and their choices for a problem."""

from __future__ import annotations

from functools import lru_cache

from tirgemm.config import Config, Knob, Space, Value, up_to
from tirgemm.families.common.alignment import store_width
from tirgemm.families.tensorcore.names import CUT, DIRECT, HALF, LINE, MEANINGS, NONE, PADDED, PERMUTED, STAGED
from tirgemm.families.tensorcore.rules import LEAST_STEPS
from tirgemm.families.tensorcore.tiling import MMA_K, Tiling, loads, side
from tirgemm.gemm import Gemm
from tirgemm.hardware import WARP

TILES_M = (16, 32, 64, 128, 256)
TILES_N = (16, 32, 64, 128, 256)
TILES_K = (16, 32, 64)
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_MEANINGS = MEANINGS | {
    "shared": "rows of a shared tile follow one another (none), 16 bytes apart (padded), or with their runs permuted",
    "copy": "neighbouring threads copy whole lines of 128 bytes (line), or halves of them (half)",
    "epilogue": "D leaves from the registers (direct), or through shared memory by rows (staged)",
}


def space(gemm: Gemm) -> Space:
    """Every knob with its choices, simplest first."""
    steps = -(-gemm.k // MMA_K)
    tiles_n = up_to(gemm.n, TILES_N)
    splits = tuple(s for s in _SPLITS if s == 1 or (steps // s >= LEAST_STEPS and not gemm.invariant))
    columns = [-(-gemm.n // tile) for tile in tiles_n]
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("tile_m", up_to(gemm.m_max, TILES_M)),
        ("tile_n", tiles_n),
        ("tile_k", up_to(gemm.k, TILES_K)),
        ("warps_m", (1, 2, 4, 8) if gemm.m_max > 64 else (1, 2, 4)),
        ("warps_n", (1, 2, 4, 8) if gemm.n > 64 else (1, 2, 4)),
        ("stages", tuple(s for s in (2, 3, 4, 5) if s == 2 or s <= steps + 1)),
        ("registers", (1, 2) if gemm.k > TILES_K[0] else (1,)),
        ("resident", (1, 2, 3, 4)),
        ("shared", (NONE, PADDED, PERMUTED)),
        ("copy", (LINE, HALF)),
        ("load", loads(gemm)),
        ("epilogue", (DIRECT, STAGED)),
        ("split", splits),
        ("raster", tuple(r for r in (1, 2, 3, 4, 8, 16) if any(count % r == 0 for count in columns))),
    )
    return Space("mma", tuple(Knob(name, choices, _MEANINGS[name]) for name, choices in knobs))


@lru_cache(maxsize=1024)
def tiling(gemm: Gemm, config: Config) -> Tiling:
    """The cut that ``config`` means for ``gemm``. Defined for every point of the space, valid or not."""
    threads = config["warps_m"] * config["warps_n"] * WARP
    knobs = (config["shared"], config["copy"], config["load"])
    return Tiling(
        gemm=gemm,
        **config.part(CUT),
        epilogue=config["epilogue"],
        a=side(gemm, "a", config["tile_m"], config["tile_k"], threads, *knobs),
        b=side(gemm, "b", config["tile_n"], config["tile_k"], threads, *knobs),
        width_d=store_width(gemm),
    )
