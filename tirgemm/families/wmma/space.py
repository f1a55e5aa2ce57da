"""The knobs of ``wmma`` and their choices for a problem."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tirgemm.config import Config, Knob, Space, Value, up_to
from tirgemm.families.common.alignment import store_width
from tirgemm.families.tensorcore.names import CUT, LINE, MEANINGS, NONE, STAGED
from tirgemm.families.tensorcore.rules import LEAST_STEPS
from tirgemm.families.tensorcore.tiling import RUN, RUN_BYTES, Side, loads, side
from tirgemm.families.wmma.tile import FRAGMENT, WmmaTiling
from tirgemm.gemm import Gemm, Operand
from tirgemm.hardware import WARP
from tirgemm.layouts import Layout

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
    return WmmaTiling(
        gemm=gemm,
        **config.part(CUT),
        epilogue=STAGED,
        a=_padded(gemm, "a", config["tile_m"], config),
        b=_padded(gemm, "b", config["tile_n"], config),
        width_d=store_width(gemm),
        sets=config["registers"],
    )


def _padded(gemm: Gemm, operand: Operand, extent: int, config: Config) -> Side:
    """The tile of an operand with ``pad`` elements after each row."""
    threads = config["warps_m"] * config["warps_n"] * WARP
    plain = side(gemm, operand, extent, config["tile_k"], threads, NONE, LINE, config["load"])
    return replace(plain, layout=Layout.padded(plain.rows, plain.runs, RUN_BYTES, config["pad"] // RUN))
