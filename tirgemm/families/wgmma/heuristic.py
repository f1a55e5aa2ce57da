"""The config without tuning: the best of a table of cuts by the analytic model. Pure; under a millisecond."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families.wgmma.estimate import Cuts, estimate_us
from tirgemm.families.wgmma.planning.names import CLUSTER, COOPERATIVE, DIRECT, KERNEL, NORMAL, PINGPONG
from tirgemm.families.wgmma.planning.plan import Plan, plan
from tirgemm.families.wgmma.planning.tile import MMA_K
from tirgemm.families.wgmma.rules import RULES, empty_parts
from tirgemm.families.wgmma.space import TILES_N, epilogues, loads
from tirgemm.gemm import Gemm

# schedule, resident, cluster_m, cluster_n of whole tiles.
_WHOLE = (
    (COOPERATIVE, 1, 1, 1),
    (COOPERATIVE, 1, 2, 1),
    (COOPERATIVE, 1, 1, 2),
    (PINGPONG, 1, 2, 1),
    (PINGPONG, 1, 1, 1),
    (COOPERATIVE, 2, 1, 1),
)
# split and reduction of tiles whose k is cut.
_PARTS = (*((s, CLUSTER) for s in (2, 3, 4, 6, 8)), *((s, KERNEL) for s in (2, 3, 4, 6, 8, 12, 16, 32, 64)))
# tile_m -> the widest tile_n whose accumulators fit, whole and where two blocks share an SM.
_WIDEST, _WIDEST_HALF = {64: 256, 128: 256, 192: 192, 256: 192}, {64: 128, 128: 96, 192: 64, 256: 48}
_MOST_STAGES = 8
# What staged outputs and barriers take of shared memory at most.
_STAGING_BYTES = 2 * 2 * 64 * 64 * 2 + 8 * 2 * (_MOST_STAGES + 1)
# Cuts that are looked at, best-estimated first, until one passes every rule.
_TRIES = 200
_FEW_TILES, _FEW_ROWS = 4, 32


def default(gemm: Gemm, device: Device, regime: str) -> Config:
    """The best-estimated cut that passes every rule. Raises Unsupported where none does."""
    table, names = _table()
    stages = _stages(table, gemm, device)
    times = estimate_us(replace(table, stages=np.maximum(stages, 2)), gemm, device, regime)
    rows, columns = np.where(table.swap, gemm.n, gemm.m_max), np.where(table.swap, gemm.m_max, gemm.n)
    wasteful = ((table.tile_m > 64) & (rows <= table.tile_m // 2)) | (
        (table.tile_n > 16) & (columns <= table.tile_n // 2)
    )
    # Half a tile of few rows for each of two blocks: far slower than estimated, as the search found.
    wasteful |= (table.cluster_n > 1) & (rows <= _FEW_ROWS)
    times = np.where(wasteful | (stages < 2), np.inf, times)
    # In fp32, and ties by their place in the table: neither the last bits of an estimate nor the order in which numpy
    # partitions, which both depend on this machine's vector instructions, may decide what an H200 gets.
    times = times.astype(np.float32)
    nearest = np.sort(np.argpartition(times, _TRIES)[:_TRIES])
    order = nearest[np.argsort(times[nearest], kind="stable")]
    for row in order[_promising(table, order, gemm)]:
        config = _config(gemm, device, names[row], int(stages[row]))
        if all(rule.check(gemm, config, device) is None for rule in RULES):
            return config
    raise Unsupported(f"wgmma has no default for {gemm} on {device.name}: every cut of its table breaks a rule")


def predict_us(gemm: Gemm, config: Config, device: Device, regime: str) -> float:
    """The time that the analytic model gives a config."""
    return float(estimate_us(Cuts.of(plan(gemm, config, device.units)), gemm, device, regime))


Name = tuple[int, int, int, str, int, int, int, int, int, str]


@lru_cache(maxsize=1)
def _table() -> tuple[Cuts, tuple[Name, ...]]:
    """The cuts that a default may be: as columns, and each as the knobs of a plan."""
    names: list[Name] = []
    for tile_m, tile_n, tile_k, swap in product(_WIDEST, TILES_N, (64, 128), (0, 1)):
        if tile_n > _WIDEST[tile_m] or (tile_k > 64 and tile_m * tile_n >= 128 * 128):
            continue
        for schedule, resident, cluster_m, cluster_n in _WHOLE:
            halves = _WIDEST_HALF[tile_m] if resident > 1 else _WIDEST[tile_m]
            # In ping-pong a consumer has the whole tile's accumulators.
            most = halves // (2 if schedule == PINGPONG and tile_m > 128 else 1)
            if tile_n <= (192 if schedule == PINGPONG and tile_m == 128 else most):
                names.append((tile_m, tile_n, tile_k, schedule, resident, cluster_m, cluster_n, swap, 1, CLUSTER))
        for split, reduction in _PARTS:
            if not (reduction == KERNEL and swap) and not (reduction == CLUSTER and tile_m > 192):
                names.append((tile_m, tile_n, tile_k, COOPERATIVE, 1, 1, 1, swap, split, reduction))
    columns = list(zip(*names, strict=True))
    numbers = [np.array(columns[i]) for i in (0, 1, 2, 4, 5, 6, 7, 8)]
    pingpong, kernel = np.array(columns[3]) == PINGPONG, np.array(columns[9]) == KERNEL
    stages = np.zeros(len(names), np.int64)
    knobs: list[Any] = [*numbers[:3], stages, pingpong, *numbers[3:], kernel, ~kernel]
    return Cuts(*knobs), tuple(names)


def _stages(table: Cuts, gemm: Gemm, device: Device) -> npt.NDArray[np.int64]:
    """As many stages as fit and are of use; fewer than two where a cut does not fit at all."""
    rows, columns = np.where(table.swap, gemm.n, gemm.m_max), np.where(table.swap, gemm.m_max, gemm.n)
    limits = device.limits
    limit = np.where(table.resident > 1, limits.shared_per_sm // 2 - 1024, limits.shared_per_block)
    fit = (limit - _STAGING_BYTES) // (2 * table.tile_k * (table.tile_m + table.tile_n))
    tiles = -(-rows // table.tile_m) * -(-columns // table.tile_n) * gemm.batch
    waves = np.where(table.split > 1, 1, -(-tiles // (device.units * table.resident)))
    whole = -(-gemm.k // table.tile_k)
    steps = -(-whole // table.split) * waves
    found: npt.NDArray[np.int64] = np.minimum(np.minimum(fit, _MOST_STAGES), np.maximum(2, steps))
    return found


def _promising(table: Cuts, order: npt.NDArray[np.intp], gemm: Gemm) -> npt.NDArray[np.bool_]:
    """Which rows of ``table`` break neither of the two rules that break most: one by one, that would take long.

    Columns that are contiguous in memory are loaded by sixteen, and every part of k has some of it.
    """
    by_sixteen = np.where(table.swap[order], gemm.trans_a, not gemm.trans_b)
    empty = empty_parts(-(-gemm.k // table.tile_k[order]), table.split[order])
    found: npt.NDArray[np.bool_] = ~(empty | (by_sixteen & (table.tile_n[order] % MMA_K > 0)))
    return found


def _config(gemm: Gemm, device: Device, name: Name, stages: int) -> Config:
    tile_m, tile_n, tile_k, schedule, resident, cluster_m, cluster_n, swap, split, reduction = name
    rows, columns = (gemm.n, gemm.m_max) if swap else (gemm.m_max, gemm.n)
    # Tiles that share a part of the larger operand run together, lest it is read once for each.
    high, wide = -(-rows // (tile_m * cluster_m)), -(-columns // (tile_n * cluster_n))
    group = 1 if 1 < wide <= _FEW_TILES else next((g for g, least in ((8, 8), (4, 2)) if high >= least), 1)
    epilogue = DIRECT if reduction == KERNEL and split > 1 else epilogues(gemm)[0]
    return Plan(
        gemm,
        device.units,
        tile_m,
        tile_n,
        tile_k,
        stages,
        schedule,
        resident,
        cluster_m,
        cluster_n,
        swap,
        split,
        reduction,
        loads(gemm)[0],
        epilogue,
        "m",
        group,
        2,
        NORMAL,
    ).config
