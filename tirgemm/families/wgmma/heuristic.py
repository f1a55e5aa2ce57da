"""The configs without tuning: the best of a table of cuts by the analytic model and, where one was trained, a ranking
model. Pure; a few milliseconds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families.base import accepted
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import RankingModel, ranking_model
from tirgemm.families.common.tile_work import physical_features
from tirgemm.families.wgmma.estimate import Cuts, estimate_us, held_columns
from tirgemm.families.wgmma.planning.alignment import misaligned_to_lines
from tirgemm.families.wgmma.planning.names import (
    BLOCK,
    CLUSTER,
    COOPERATIVE,
    COPY,
    DIRECT,
    KERNEL,
    NORMAL,
    PINGPONG,
    TMA,
)
from tirgemm.families.wgmma.planning.parts import part_count
from tirgemm.families.wgmma.planning.plan import KNOBS, plan
from tirgemm.families.wgmma.rules import RULES, empty_parts
from tirgemm.families.wgmma.space import GROUPS, TILES_M, TILES_N, loads, space
from tirgemm.families.wgmma.work import (
    cuts_of,
    estimates_us,
    side_by_side,
    staging_bytes,
    tile_work,
    usual_epilogue,
)
from tirgemm.gemm import Gemm, Regime

# The knobs of the table's rows.
_TABLE_KNOBS = (
    "tile_m",
    "tile_n",
    "tile_k",
    "schedule",
    "resident",
    "cluster_m",
    "cluster_n",
    "swap",
    "split",
    "reduction",
)
# schedule, resident, cluster_m, cluster_n of whole tiles.
_WHOLE = (
    (COOPERATIVE, 1, 1, 1),
    (COOPERATIVE, 1, 2, 1),
    (COOPERATIVE, 1, 1, 2),
    (PINGPONG, 1, 2, 1),
    (PINGPONG, 1, 1, 1),
    (COOPERATIVE, 2, 1, 1),
)
# The same where rows are not aligned to lines of L2: TMA loads them more slowly, and blocks that share issue fewer
# loads.
_WHOLE_MISALIGNED = (
    *_WHOLE,
    *product((COOPERATIVE, PINGPONG), (1,), (2,), (2, 4)),
    *product((COOPERATIVE, PINGPONG), (1,), (4,), (1, 2)),
    *product((COOPERATIVE, PINGPONG), (1,), (1,), (4,)),
)
# split and reduction of tiles whose k is cut.
_PARTS = (*((s, CLUSTER) for s in (2, 3, 4, 6, 8)), *((s, KERNEL) for s in (2, 3, 4, 6, 8, 12, 16, 32, 64)))
# tile_m -> the widest tile_n whose accumulators fit, whole and where two blocks share an SM.
_WIDEST, _WIDEST_HALF = {64: 256, 128: 256, 192: 192, 256: 192}, {64: 128, 128: 96, 192: 64, 256: 48}
# The same where a block adds the parts of k in turn, which takes as many registers again.
_WIDEST_IN_TURN = {64: 192, 128: 192, 192: 112, 256: 96}
_MOST_STAGES = 10
# From so many steps of k on one more stage is worth narrower chunks of D, in the tallest tiles, of which few stages
# fit, and in the lowest ones where the next is multiplied meanwhile. Elsewhere it gained 1 % or lost.
_STEPS_OF_NARROWED = 8
# What barriers take of shared memory at most.
_BARRIER_BYTES = 8 * 2 * (_MOST_STAGES + 1)
# Shared memory beside which an SM has 60 KiB of L1; with more it has 28. What threads copy in pieces goes through it
# (cp.async of less than 16 bytes): on an H200 two kernels of a stage less, and other changes, were 12 and 15 % faster.
_SHARED_BESIDE_L1 = 196 * 1024
# Cuts that are looked at, best-estimated first, and those of them that every raster is looked at of.
_TRIES, _RASTERED = 256, 12
# A raster other than the usual one has to be expected to be faster by this share: the model's errors are larger.
_RASTER_GAIN = 0.003
_FEW_TILES, _FEW_ROWS = 4, 32


def default(gemm: Gemm, device: Device, regime: Regime) -> Config:
    """The best-ranked cut that passes every rule. Raises Unsupported where none does."""
    return shortlist(gemm, device, regime, 1)[0]


def shortlist(gemm: Gemm, device: Device, regime: Regime, count: int, *, trained: bool = True) -> list[Config]:
    """At most ``count`` of the best-ranked cuts of the space that pass every rule, best first. Raises Unsupported where
    none does.

    The analytic model ranks the table; where a trained model covers the problem, that ranks the best of it anew, and
    chooses each cut's raster, unless ``trained`` is False.
    """
    return list(_shortlist(gemm, device, regime, count, ranking_model(device) if trained else None))


@lru_cache(maxsize=256)
def _shortlist(
    gemm: Gemm, device: Device, regime: Regime, count: int, model: RankingModel | None
) -> tuple[Config, ...]:
    """A job asks for the same one several times, ten milliseconds each."""
    configs = _estimated(gemm, device, regime)
    if model is not None and model.covers("wgmma", gemm, regime):
        configs = _ranked(configs, model, gemm, device, regime)
    choices = {knob.name: knob.choices for knob in space(gemm, device).knobs}
    valid: list[Config] = []
    for row in range(len(configs)):
        config = configs.config(row)
        if any(value not in choices[name] for name, value in config.knobs):
            continue  # the table is for all problems, and a space has only what its problem may use
        if accepted(RULES, gemm, config, device):
            valid.append(config)
            if len(valid) == count:
                break
    if not valid:
        raise Unsupported(f"wgmma has no default for {gemm} on {device.name}: every cut of its table breaks a rule")
    return tuple(valid)


@lru_cache(maxsize=8)
def _estimated(gemm: Gemm, device: Device, regime: Regime) -> ConfigColumns:
    """The best-estimated cuts of the table, best first. Asked for with a ranking model and without."""
    parts = part_count(gemm.n, gemm.k) if gemm.invariant else None
    table, cuts = _table(parts, misaligned_to_lines(gemm), tuple(loads(gemm)))
    stages = _stages(table, gemm, device)
    cuts = replace(cuts, stages=np.maximum(stages, 2), chunked=usual_epilogue(gemm, cuts.swap) == TMA)
    order = _best_estimated(cuts, stages, gemm, device, regime)
    return _completed(table.take(order).with_(stages=stages[order]), gemm)


def _best_estimated(
    cuts: Cuts, stages: npt.NDArray[np.int64], gemm: Gemm, device: Device, regime: Regime
) -> npt.NDArray[np.intp]:
    """Rows of the best-estimated cuts, best first."""
    times = estimate_us(cuts, gemm, device, regime)
    rows, columns = np.where(cuts.swap, gemm.n, gemm.m_max), np.where(cuts.swap, gemm.m_max, gemm.n)
    wasteful = ((cuts.tile_m > 64) & (rows <= cuts.tile_m // 2)) | ((cuts.tile_n > 16) & (columns <= cuts.tile_n // 2))
    # Half a tile of few rows for each of two blocks: far slower than estimated, as the search found.
    wasteful |= (cuts.cluster_n > 1) & (rows <= _FEW_ROWS)
    # Every part of k has some of it.
    wasteful |= empty_parts(-(-gemm.k // cuts.tile_k), cuts.split) | (stages < 2)
    # The operand that threads copy is shared with no other block.
    wasteful |= cuts.copied & (cuts.cluster_m * cuts.cluster_n > 1)
    # In fp32, and ties by their place in the table: neither the last bits of an estimate nor the order in which numpy
    # partitions, which both depend on this machine's vector instructions, may decide what an H200 gets.
    times = np.where(wasteful, np.inf, times).astype(np.float32)
    limit = np.partition(times, _TRIES)[_TRIES]
    nearest = np.flatnonzero((times <= limit) & (times < np.inf))
    return nearest[np.argsort(times[nearest], kind="stable")[:_TRIES]]


def _ranked(configs: ConfigColumns, model: RankingModel, gemm: Gemm, device: Device, regime: Regime) -> ConfigColumns:
    """``configs`` in the order of ``model``: of the best cuts the best raster of each, then the other cuts.

    Where D transposed is the same problem a swapped cut is its twin again, which only noise tells from it.
    """
    if gemm.m_max == gemm.n and gemm.trans_a != gemm.trans_b:
        configs = configs.take(np.flatnonzero(configs["swap"] == 0))
    order = _order(configs, model, gemm, device, regime)
    best, rest = order[:_RASTERED], order[_RASTERED:]
    choices = {knob.name: knob.choices for knob in space(gemm, device).knobs}
    orders, groups = zip(*product(choices["order"], choices["group"]), strict=True)
    repeated = configs.take(np.repeat(best, len(groups)))
    rasters = repeated.with_(order=np.tile(orders, len(best)), group=np.tile(groups, len(best)))
    unusual = (rasters["order"] != repeated["order"]) | (rasters["group"] != repeated["group"])
    sensible = np.flatnonzero(_sensible(rasters, gemm) | ~unusual)
    rasters, unusual = rasters.take(sensible), unusual[sensible]
    rasters = rasters.take(_order(rasters, model, gemm, device, regime, _RASTER_GAIN * unusual))
    # The first of each cut; what tells cuts apart are all knobs but the raster.
    cuts: dict[tuple[Any, ...], int] = {}
    names = [name for name in rasters.knobs if name not in ("order", "group")]
    for row, cut in enumerate(zip(*(rasters[name].tolist() for name in names), strict=True)):
        cuts.setdefault(cut, row)
    return rasters.take(np.array(list(cuts.values()), np.intp)).followed_by(configs.take(rest))


def _order(
    configs: ConfigColumns, model: RankingModel, gemm: Gemm, device: Device, regime: Regime, behind: Any = 0.0
) -> npt.NDArray[np.intp]:
    """Rows by the time that ``model`` expects, longer by the share ``behind``; compared in fp32, ties by their
    order."""
    us = estimates_us(gemm, configs, device, regime)
    features = physical_features(gemm, tile_work(gemm, configs, device), us, device, regime)
    times = (np.log(us) - model.log_gain(features, configs) + behind).astype(np.float32)
    return np.argsort(times, kind="stable")


def _sensible(configs: ConfigColumns, gemm: Gemm) -> npt.NDArray[np.bool_]:
    """Whether a raster's group is no larger than the tiles along it need, as the rule ``raster`` has it."""
    rows, columns = np.where(configs["swap"], gemm.n, gemm.m_max), np.where(configs["swap"], gemm.m_max, gemm.n)
    high = -(-rows // (configs["tile_m"] * configs["cluster_m"]))
    wide = -(-columns // (configs["tile_n"] * configs["cluster_n"]))
    by_rows = configs["order"] == "m"
    along = np.where(by_rows, high, wide)
    smaller = np.array([0, *GROUPS])[np.searchsorted(GROUPS, configs["group"])]
    sensible: npt.NDArray[np.bool_] = ((configs["group"] == 1) | (smaller < along)) & (by_rows | (along > 1))
    return sensible


def predict_us(gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
    """The time that the analytic model gives a config."""
    return float(estimate_us(Cuts.of(plan(gemm, config, device.units)), gemm, device, regime))


@lru_cache(maxsize=10)
def _table(parts: int | None, misaligned: bool, ways: tuple[str, ...]) -> tuple[ConfigColumns, Cuts]:
    """The cuts that a default may be, with each of the ``ways`` to load, and what the analytic model sees of them; of
    so many ``parts`` of k where an invariant problem fixes them; of larger clusters too where rows are ``misaligned``
    to lines of L2.

    What depends on the problem is filled in by ``_stages`` and ``_completed``.
    """
    rows: list[tuple[Value, ...]] = []
    added = BLOCK if (whole := parts or 1) > 1 else CLUSTER
    for tile_m, tile_n, tile_k, swap in product(_WIDEST, TILES_N, (64, 128), (0, 1)):
        if tile_n > _WIDEST[tile_m] or (tile_k > 64 and tile_m * tile_n >= 128 * 128):
            continue
        for schedule, resident, cluster_m, cluster_n in _WHOLE_MISALIGNED if misaligned else _WHOLE:
            if whole > 1:
                most = 0 if resident > 1 else _WIDEST_IN_TURN[tile_m]
                most //= 2 if schedule == PINGPONG and tile_m == 128 else 1
            else:
                most = _WIDEST_HALF[tile_m] if resident > 1 else _WIDEST[tile_m]
                # In ping-pong a consumer has the whole tile's accumulators.
                most = 192 if schedule == PINGPONG and tile_m == 128 else most
                most //= 2 if schedule == PINGPONG and tile_m > 128 else 1
            if tile_n <= most:
                rows.append((tile_m, tile_n, tile_k, schedule, resident, cluster_m, cluster_n, swap, whole, added))
        for split, reduction in _PARTS:
            if parts in (None, split) and not _unwritten(reduction, swap, tile_m):
                rows.append((tile_m, tile_n, tile_k, COOPERATIVE, 1, 1, 1, swap, split, reduction))
    columns = dict(zip(_TABLE_KNOBS, map(np.array, zip(*rows, strict=True)), strict=True))
    unset = {name: np.zeros(len(rows), np.int64) for name in ("stages", "group", "l2_promotion")}
    words = {name: np.full(len(rows), "") for name in ("load", "order", "eviction")}
    # Cuts are compared as if D left every tile in the same way.
    known = columns | unset | words | {"epilogue": np.full(len(rows), TMA)}
    once = ConfigColumns("wgmma", {name: known[name] for name in KNOBS})
    table = once.take(np.tile(np.arange(len(once)), len(ways))).with_(load=np.repeat(ways, len(once)))
    return table, cuts_of(table)


def _unwritten(reduction: str, swap: int, tile_m: int) -> bool:
    """Whether parts are never added so: swapped tiles by a second kernel, or by a cluster those of two blocks of rows a
    thread."""
    return (reduction == KERNEL and swap == 1) or (reduction == CLUSTER and tile_m > 192)


def _stages(table: ConfigColumns, gemm: Gemm, device: Device) -> npt.NDArray[np.int64]:
    """As many stages as fit and are of use; fewer than two where a cut does not fit at all."""
    swap, tile_m, tile_n, tile_k = (table[name] for name in ("swap", "tile_m", "tile_n", "tile_k"))
    rows, columns = np.where(swap, gemm.n, gemm.m_max), np.where(swap, gemm.m_max, gemm.n)
    limits = device.limits
    shared = np.where(table["load"] == COPY, min(_SHARED_BESIDE_L1, limits.shared_per_sm), limits.shared_per_sm)
    limit = np.minimum(shared // table["resident"] - limits.shared_reserved_per_block, limits.shared_per_block)
    stage_bytes = 2 * tile_k * (tile_m + held_columns(tile_n, swap, gemm))
    whole = -(-gemm.k // tile_k)
    narrowed = (whole >= _STEPS_OF_NARROWED) & (table["load"] != COPY)
    narrowed &= (tile_m == max(TILES_M)) | ((table["schedule"] == PINGPONG) & (tile_m == min(TILES_M)))
    staged = staging_bytes(table, gemm, narrowed=narrowed)
    fit = (limit - _BARRIER_BYTES - staged) // stage_bytes
    tiles = -(-rows // tile_m) * -(-columns // tile_n) * gemm.batch
    parts = side_by_side(table)
    waves = np.where(parts > 1, 1, -(-tiles // (device.units * table["resident"])))
    steps = -(-whole // parts) * waves
    stages: npt.NDArray[np.int64] = np.minimum(np.minimum(fit, _MOST_STAGES), np.maximum(2, steps))
    return stages


def _completed(configs: ConfigColumns, gemm: Gemm) -> ConfigColumns:
    """With the knobs that follow from the problem, and a raster by which tiles that share a part of the larger operand
    run together, lest it is read once for each."""
    swap, count = configs["swap"], len(configs)
    rows, columns = np.where(swap, gemm.n, gemm.m_max), np.where(swap, gemm.m_max, gemm.n)
    high = -(-rows // (configs["tile_m"] * configs["cluster_m"]))
    wide = -(-columns // (configs["tile_n"] * configs["cluster_n"]))
    group = np.where((wide > 1) & (wide <= _FEW_TILES), 1, np.where(high >= 8, 8, np.where(high >= 2, 4, 1)))
    partials = (configs["reduction"] == KERNEL) & (configs["split"] > 1)
    return configs.with_(
        epilogue=np.where(partials, DIRECT, usual_epilogue(gemm, swap)),
        order=np.full(count, "m"),
        group=group,
        l2_promotion=np.full(count, 2),
        eviction=np.full(count, NORMAL),
    )
