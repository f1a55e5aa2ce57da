"""The knobs of ``wmma`` and their choices for a problem."""

from __future__ import annotations

from functools import lru_cache

from tirgemm.config import Config, Knob, Space, Value, up_to
from tirgemm.families.common.alignment import store_width
from tirgemm.families.tensorcore.names import CUT, LINE, MEANINGS, STAGED
from tirgemm.families.tensorcore.rules import LEAST_STEPS
from tirgemm.families.tensorcore.tiling import RUN, loads, side
from tirgemm.families.wmma.tile import FRAGMENT, WmmaTiling
from tirgemm.gemm import Gemm
from tirgemm.hardware import WARP

TILES_M = (16, 32, 64, 128, 256)
TILES_N = (16, 32, 64, 128, 256)
TILES_K = (16, 32, 64)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MEANINGS = MEANINGS | {"pad": "elements after each row of a shared tile"}


def space(gemm: Gemm) -> Space:
    """Every knob with its choices, simplest first."""
    steps, columns = -(-gemm.k // FRAGMENT), -(-gemm.n // TILES_N[0])
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("tile_m", up_to(gemm.m_max, TILES_M)),
        ("tile_n", up_to(gemm.n, TILES_N)),
        ("tile_k", up_to(gemm.k, TILES_K)),
        ("warps_m", (1, 2, 4)),
        ("warps_n", (1, 2, 4)),
        ("stages", tuple(s for s in (2, 3, 4) if s == 2 or s <= steps + 1)),
        ("registers", (1, 2) if gemm.k > TILES_K[0] else (1,)),
        ("resident", (1, 2, 3, 4)),
        ("pad", (0, 8, 16)),
        ("load", loads(gemm)),
        ("split", tuple(s for s in _SPLITS if s == 1 or steps // s >= LEAST_STEPS)),
        ("raster", tuple(r for r in (1, 2, 4, 8, 16) if r <= columns)),
    )
    return Space("wmma", tuple(Knob(name, choices, _MEANINGS[name]) for name, choices in knobs))


@lru_cache(maxsize=1024)
def tiling(gemm: Gemm, config: Config) -> WmmaTiling:
    """The cut that ``config`` means for ``gemm``. Defined for every point of the space, valid or not."""
    tile_k, threads = config["tile_k"], config["warps_m"] * config["warps_n"] * WARP
    knobs = (config["pad"] // RUN, LINE, config["load"])
    return WmmaTiling(
        gemm=gemm,
        **config.part(CUT),
        epilogue=STAGED,
        a=side(gemm, "a", config["tile_m"], tile_k, threads, *knobs),
        b=side(gemm, "b", config["tile_n"], tile_k, threads, *knobs),
        width_d=store_width(gemm),
        sets=config["registers"],
    )
