"""Ranked defaults across families and the opening configs of a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families import is_valid
from tirgemm.families.base import Family, WithShortlist
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.knob_parts import COARSE
from tirgemm.families.common.ranking_model import RankingModel, ranking_model
from tirgemm.families.features import expected_us, features
from tirgemm.gemm import Gemm, Regime

# A family may be the fastest where its estimate is at most so many times the best's of those that rank configs: in the
# shipped records mma's or wmma's is on 95 % of the 475 problems that one of them won. Of another only its default by
# the estimate counts, and that is not tried where the model does not cover the family.
PROMISING = 1.5
# Families whose default's estimate is this many times the best's are not compared by the model, which learns nothing of
# them (``tirgemm.tuning.search.collection`` leaves them out).
FAR_BEHIND = 4.0
# Problems whose choices are kept: a job's are asked for while it waits, by its fallback and by its search, and take
# 15 ms each time.
_KEPT = 256
# Expected times that differ by less are no reason to call one the faster: the model errs by as much.
AS_FAST = 1.02


def ranked_defaults(
    families: Iterable[Family], gemm: Gemm, device: Device, regime: Regime
) -> list[tuple[Family, Config]]:
    """Each family with its default, fastest first by the ranking model where that covers the problem in all families
    that are not far behind; those come last. Of a family that is not ``PROMISING`` it is the default by estimates.

    Elsewhere by their analytic estimates: one family's corrected time says nothing beside another's estimate. Families
    without a default are left out. Raises Unsupported where none has one.
    """
    return list(_ranked_defaults(tuple(families), gemm, device.device_class, regime, ranking_model(device)))


@lru_cache(maxsize=_KEPT)
def _ranked_defaults(
    families: tuple[Family, ...], gemm: Gemm, device: Device, regime: Regime, model: RankingModel | None
) -> list[tuple[Family, Config]]:
    if len(families) < 2:
        return [(family, family.default(gemm, device, regime)) for family in families]
    by_estimate = _by_estimate(families, gemm, device, regime)
    if not by_estimate:
        names = ", ".join(family.name for family in families)
        raise Unsupported(f"no family has a default for {gemm} on {device.name}: of {names} every choice breaks a rule")
    promising = promising_us({family: us for family, (_, us) in by_estimate.items()})
    defaults = [
        (family, family.default(gemm, device, regime) if us <= promising else config)
        for family, (config, us) in by_estimate.items()
    ]
    times = {family.name: family.predict_us(gemm, config, device, regime) for family, config in defaults}
    limit = FAR_BEHIND * min(times.values(), default=0.0)
    near = [pair for pair in defaults if times[pair[0].name] <= limit]
    if model is not None and all(model.covers(family.name, gemm, regime) for family, _ in near):
        expected = {f.name: expected_time_us(f, config, gemm, device, regime, model) for f, config in near}
        times |= {name: us - 2 * max(expected.values()) for name, us in expected.items()}  # before those far behind
    return sorted(defaults, key=lambda pair: times[pair[0].name])


def opening(families: Sequence[Family], gemm: Gemm, device: Device, regime: Regime, count: int) -> list[Config]:
    """What is tried before anything is searched for, best first.

    The best default; the ``count`` best by the ranking model over the families that it covers, or by the estimates over
    those that rank configs, where it covers none; the best by analytic estimates alone, where those choose otherwise;
    the defaults of families that the model does not cover, if they are ``PROMISING``. Families without a list of their
    own, or not ``PROMISING``, have only their default. With a ``count`` of 0 every family's default and nothing else.
    """
    return list(_opening(tuple(families), gemm, device.device_class, regime, count, ranking_model(device)))


@lru_cache(maxsize=_KEPT)
def _opening(
    families: tuple[Family, ...], gemm: Gemm, device: Device, regime: Regime, count: int, model: RankingModel | None
) -> list[Config]:
    defaults = _ranked_defaults(families, gemm, device, regime, model)
    if not count:
        return [config for _, config in defaults]
    by_estimate = _by_estimate(families, gemm, device, regime)
    covered = [f for f in by_estimate if model is not None and model.covers(f.name, gemm, regime)]
    promising = promising_us({family: us for family, (_, us) in by_estimate.items()})
    lists = {family.name: [config] for family, config in defaults}
    for family, (_, us) in by_estimate.items():
        if isinstance(family, WithShortlist) and us <= promising:
            lists[family.name] = family.shortlist(gemm, device, regime, count)
    ranked: dict[Config, float] = {}
    for family in covered or [family for family in by_estimate if isinstance(family, WithShortlist)]:
        latest = 0.0
        for config in lists[family.name]:  # in the family's own order
            latest = ranked[config] = max(latest, expected_time_us(family, config, gemm, device, regime, model))
    best = sorted(ranked, key=lambda config: ranked[config])[:count]
    first, _ = min(by_estimate.values(), key=lambda pair: pair[1])
    uncovered = [family for family in by_estimate if family not in covered]
    others = [config for config, us in (by_estimate[family] for family in uncovered) if us <= promising]
    return list(dict.fromkeys([defaults[0][1], *best, first, *others]))


def next_best(families: Sequence[Family], gemm: Gemm, device: Device, regime: Regime, count: int) -> list[Config]:
    """What may stand in the place of the best default, best first: what else is tried before a search, the other
    families' defaults, and ``count`` of its variants by one knob: those that cut the work in another way first, since
    the others may have the same machine code, and of them the fastest as expected."""
    (family, best), *others = ranked_defaults(families, gemm, device, regime)
    model, near = ranking_model(device), dict[Config, tuple[bool, float]]()
    for knob in family.space(gemm, device).knobs:
        for config in (best.with_(**{knob.name: choice}) for choice in knob.choices):
            if config != best and is_valid(gemm, config, device):
                us = expected_time_us(family, config, gemm, device, regime, model)
                near[config] = knob.name not in COARSE, us
    tried = opening(families, gemm, device, regime, count)[1:]
    variants = sorted(near, key=lambda config: near[config])[:count]
    return list(dict.fromkeys([*tried, *(config for _, config in others), *variants]))


def promising_us(estimates: Mapping[Family, float]) -> float:
    """Up to which estimate a family may be the fastest. One that ranks no configs shuts out none: the estimates of
    ``simt`` are half of what it takes where a large D is of few steps of k."""
    ranking = [us for family, us in estimates.items() if isinstance(family, WithShortlist)]
    return PROMISING * min(ranking or estimates.values())


def _by_estimate(
    families: Iterable[Family], gemm: Gemm, device: Device, regime: Regime
) -> dict[Family, tuple[Config, float]]:
    """The default by its analytic estimate of each family that has one, and that estimate."""
    made = {}
    for family in families:
        config = default_of(family, gemm, device, regime, trained=False)
        if config is not None:
            made[family] = config, family.predict_us(gemm, config, device, regime)
    return made


def fastest_families(families: Iterable[Family], gemm: Gemm, device: Device, regime: Regime) -> frozenset[str]:
    """The family whose default is expected to be the fastest, and those whose defaults the ranking model expects to be
    ``AS_FAST``, which it does not tell apart. Raises Unsupported where none has a default."""
    (first, config), *others = ranked_defaults(families, gemm, device, regime)
    model = ranking_model(device)

    def expected(family: Family, config: Config) -> float:
        covers = model is not None and model.covers(family.name, gemm, regime)
        return expected_time_us(family, config, gemm, device, regime, model) if covers else math.inf

    limit = AS_FAST * expected(first, config)
    near = (family.name for family, other in others if limit < math.inf and expected(family, other) <= limit)
    return frozenset((first.name, *near))


def defaults_of(families: Iterable[Family], gemm: Gemm, device: Device, regime: Regime) -> dict[Family, Config]:
    """The default of each family that has one."""
    defaults = {family: default_of(family, gemm, device, regime) for family in families}
    return {family: config for family, config in defaults.items() if config is not None}


def default_of(family: Family, gemm: Gemm, device: Device, regime: Regime, *, trained: bool = True) -> Config | None:
    """A family's default, without ``trained`` the one by its analytic estimate; None where it has none."""
    try:
        if isinstance(family, WithShortlist) and not trained:
            return family.shortlist(gemm, device, regime, 1, trained=False)[0]
        return family.default(gemm, device, regime)
    except Unsupported:
        return None


@lru_cache(maxsize=4096)
def expected_time_us(
    family: Family, config: Config, gemm: Gemm, device: Device, regime: Regime, model: RankingModel | None
) -> float:
    """Microseconds of a config that the model expects; the analytic estimate where there is none, or it does not cover
    the problem. It takes milliseconds, and the tuning of a range asks for the same again and again."""
    return float(_expected_us(family, ConfigColumns.of([config]), gemm, device, regime, model)[0])


def expected_times_us(
    gemms: Sequence[Gemm], configs: Mapping[Config, Family], device: Device, regime: Regime
) -> npt.NDArray[np.float64]:
    """``expected_time_us`` of each of ``configs``, which are of those families, at each of ``gemms``: a row for
    each of these."""
    model, places = ranking_model(device), dict[Family, list[int]]()
    for place, family in enumerate(configs.values()):
        places.setdefault(family, []).append(place)
    times, listed = np.empty((len(gemms), len(configs))), list(configs)
    for family, of_family in places.items():
        columns = ConfigColumns.of([listed[place] for place in of_family])
        for row, gemm in zip(times, gemms, strict=True):
            row[of_family] = _expected_us(family, columns, gemm, device, regime, model)
    return times


def _expected_us(
    family: Family, configs: ConfigColumns, gemm: Gemm, device: Device, regime: Regime, model: RankingModel | None
) -> npt.NDArray[np.float64]:
    return expected_us(gemm, configs, features(gemm, configs, device, regime, family), regime, model)
