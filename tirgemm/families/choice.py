"""Choice across families: their defaults, the one that is expected to be fastest first."""

from __future__ import annotations

from collections.abc import Iterable

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import Family
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.families.features import expected_us, features
from tirgemm.gemm import Gemm


def ranked_defaults(families: Iterable[Family], gemm: Gemm, device: Device, regime: str) -> list[tuple[Family, Config]]:
    """Each family with its default, fastest first by the ranking model where that covers the problem in all of them.

    Elsewhere by their analytic estimates: one family's corrected time says nothing beside another's estimate.
    """
    defaults = [(family, family.default(gemm, device, regime)) for family in families]
    model = ranking_model(device)
    if model is None or not all(model.covers(family.name, gemm, regime) for family, _ in defaults):
        return sorted(defaults, key=lambda pair: pair[0].predict_us(gemm, pair[1], device, regime))
    times = {}
    for family, config in defaults:
        columns = ConfigColumns.of([config])
        found = features(gemm, columns, device, regime, family)
        times[family.name] = float(expected_us(gemm, columns, found, regime, model)[0])
    return sorted(defaults, key=lambda pair: times[pair[0].name])
