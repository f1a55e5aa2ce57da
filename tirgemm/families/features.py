"""Features of configs: named columns over many configs of one problem, pure functions of problem, configs, device and
regime.

A family that has tile work says what its blocks do. Of any other it follows from the knobs whose names say what they
are, D's rows running along the tile's. A feature that does not apply is NaN, which trees take as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.families.base import Family, WithDerivedKnobs, WithTileWork
from tirgemm.families.common.alignment import access_width
from tirgemm.families.common.config_columns import ConfigColumns, KnobColumn
from tirgemm.families.common.knob_parts import knob_parts
from tirgemm.families.common.ranking_model import RankingModel
from tirgemm.families.common.tile_work import Features, TileWork, physical_features
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Regime

_OPERANDS: tuple[Operand, ...] = ("a", "b")
_PIECE, _WARP = 16, 32


def features(gemm: Gemm, configs: ConfigColumns, device: Device, regime: Regime, family: Family) -> Features:
    """Every feature of ``configs``, which are the family's, beside their knobs: numbers, or arrays of one length."""
    if isinstance(family, WithTileWork):
        work, us = family.tile_work(gemm, configs, device), family.estimates_us(gemm, configs, device, regime)
    else:
        each = configs.configs()
        work = _work_of_knobs(gemm, configs, device, _derived(each, family))
        us = np.array([family.predict_us(gemm, config, device, regime) for config in each])
    return physical_features(gemm, work, us, device, regime)


def expected_us(
    gemm: Gemm, configs: ConfigColumns, inputs: Features, regime: Regime, model: RankingModel | None
) -> npt.NDArray[np.float64]:
    """Microseconds of each of ``configs`` by their features ``inputs``: the estimate, corrected by ``model`` where that
    covers the problem."""
    us = np.broadcast_to(np.asarray(inputs["estimate_us"], np.float64), len(configs))
    if model is None or not model.covers(configs.family, gemm, regime):
        return us
    return us * np.exp(-model.log_gain(inputs, configs))


def _derived(configs: Sequence[Config], family: object) -> Mapping[str, KnobColumn]:
    if not isinstance(family, WithDerivedKnobs):
        return {}
    rows: list[Mapping[str, Value]] = [family.derived_knobs(config) for config in configs]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _work_of_knobs(gemm: Gemm, configs: ConfigColumns, device: Device, derived: Mapping[str, KnobColumn]) -> TileWork:
    """Tiles without clusters in waves of one block an SM, as far as the knobs say."""
    parts = knob_parts({**configs.knobs, **derived})
    absent = np.full(len(configs), math.nan)

    def part(name: str, otherwise: Any = absent) -> Any:
        column = parts.get(name)
        return otherwise if column is None or column.dtype.kind not in "iu" else column.astype(np.float64)

    def tile(name: str, size: int) -> Any:
        column = part(name)
        return np.where(column == 0, float(size), column)

    m, n = gemm.m_max, gemm.n
    tile_m, tile_n, tile_k = tile("tile_m", m), tile("tile_n", n), tile("tile_k", gemm.k)
    split = np.maximum(1.0, part("split", np.ones(len(configs))))
    warps = part("warps_m") * part("warps_n")
    thread_m, thread_n = part("thread_m"), part("thread_n")
    with np.errstate(divide="ignore", invalid="ignore"):
        by_warps = tile_m * tile_n / (_WARP * warps)
        of_thread = np.where((thread_m > 0) & (thread_n > 0), thread_m * thread_n, math.nan)
        sums = np.where(np.isnan(warps), of_thread, by_warps)
        threads = np.maximum(1.0, tile_m * tile_n / sums) if device.kind == "cuda" else absent
    return TileWork(
        rows=float(m),
        columns=float(n),
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        loaded_m=tile_m,
        loaded_n=tile_n,
        cluster=1.0,
        work=np.ceil(m / tile_m) * np.ceil(n / tile_n) * split * gemm.batch,
        slots=float(device.units),
        split=split,
        stages=np.maximum(1.0, part("stages", np.ones(len(configs)))),
        resident=1.0,
        threads=threads,
        accumulators=sums,
        piece_m=_pieces(gemm, "a", configs),
        piece_n=_pieces(gemm, "b", configs),
        loaders=threads,
        repacked=np.where(configs.knobs["load"] == "repack", _odd_bytes(gemm), 0) if "load" in configs.knobs else 0,
    )


def _odd_bytes(gemm: Gemm) -> int:
    """Of the operands whose rows are no whole pieces of 16 bytes."""
    size = DTYPE_BYTES[gemm.dtype]
    return size * sum(gemm.span(operand) for operand in _OPERANDS if access_width(gemm, operand) * size < _PIECE)


def _pieces(gemm: Gemm, operand: Operand, configs: ConfigColumns) -> Any:
    """Bytes that a thread loads of an operand at once: the widest that suits its rows, or those of a copy's."""
    width = float(access_width(gemm, operand) * DTYPE_BYTES[gemm.dtype])
    load = configs.knobs.get("load")
    return width if load is None else np.where(load == "repack", float(_PIECE), width)
