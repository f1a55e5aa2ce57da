"""What is measured of a problem to train a ranking model with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.shipped_files import elsewhere, measured_on, ship
from tirgemm import Gemm
from tirgemm.config import Config
from tirgemm.detect import device
from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named, supporting
from tirgemm.families.base import WithShortlist, rejected
from tirgemm.families.choice import FAR_BEHIND, PROMISING
from tirgemm.gemm import REGIMES, Regime
from tirgemm.tuning.search.collection import DEPTH, RANKED, UNRANKED, configs_to_collect, recorded_configs
from tirgemm.tuning.search.neighbourhood import neighbours
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.shipped.layered_store import LayeredStore

H200 = device("sm_90a")


def test_a_family_without_a_default_costs_the_others_nothing() -> None:
    gemm = Gemm.parse("1..16x8400000x64:f16:nt")
    configs = configs_to_collect(gemm, H200, "sustained", supporting(gemm, H200), count=8)
    assert {config.family for config in configs} >= {"mma"}
    assert "wmma" not in {config.family for config in configs}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    "text", ["6780x431x27:bf16:nn", "1024x4096x512:f16:nt", "333x20x22:bf16:tt", "16x8192x4096:f16:nn"]
)
def test_defaults_the_first_of_rankings_and_random_valid_ones_are_collected(text: str, regime: Regime) -> None:
    gemm = Gemm.parse(text)
    families = supporting(gemm, H200)
    configs = configs_to_collect(gemm, H200, regime, families, count=16, seed=1)
    assert 8 <= len(set(configs)) == len(configs) <= 16
    assert configs == configs_to_collect(gemm, H200, regime, families, count=16, seed=1)
    times = {f.name: f.predict_us(gemm, f.default(gemm, H200, regime), H200, regime) for f in families}
    near = [family for family in families if times[family.name] <= FAR_BEHIND * min(times.values())]
    least = min(times[family.name] for family in families if isinstance(family, WithShortlist))
    promising = [family for family in near if times[family.name] <= PROMISING * least]
    ranking = [family for family in promising if isinstance(family, WithShortlist)]
    assert {config.family for config in configs} == {family.name for family in near}
    for family in near:
        own = [config for config in configs if config.family == family.name]
        assert family.default(gemm, H200, regime) in own
        assert all(rejected(family, gemm, config, H200) is None for config in own)
        if family in ranking:
            each = (16 - UNRANKED * (len(near) - len(ranking))) // len(ranking)
            assert set(family.shortlist(gemm, H200, regime, round(RANKED * each))) <= set(own)
            ranked = set(family.shortlist(gemm, H200, regime, DEPTH * each))
            first = family.shortlist(gemm, H200, regime, 4)
            around = {near for config in first for near in neighbours(config, family.space(gemm, H200))}
            assert set(own) - ranked <= around
    several = {c for seed in range(1, 6) for c in configs_to_collect(gemm, H200, regime, families, count=16, seed=seed)}
    for family in ranking:
        ranked = set(family.shortlist(gemm, H200, regime, 64))
        assert {c for c in several if c.family == family.name} - ranked, "the ranking alone says nothing of one knob"
    assert configs != configs_to_collect(gemm, H200, regime, families, count=16, seed=2)


def test_the_fastest_recorded_configs_are_collected_again_as_far_as_they_are_valid(tmp_path: Path) -> None:
    gemm, here = Gemm.parse("1024x4096x512:f16:nt"), H200.with_(environment=(("driver", "580"), ("tvm", "0.27")))
    mma, there = family_named("mma"), elsewhere(here)
    assert isinstance(mma, WithShortlist)
    one, two, three, four = mma.shortlist(gemm, here, "sustained", 4)
    refused, gone = Config("mma", (("block_m", 7),)), Config("gone", ())
    shipped = measured_on(there, gemm, [(one, 30.0), (refused, 1.0), (gone, 2.0), (two, 10.0), (three, 20.0)])
    with Database.embedded(tmp_path / "data") as database:
        store = LayeredStore(database, ship(tmp_path / "shipped", there, shipped))
        store.put_device(here)
        of: Any = gemm, here, "sustained", [mma], store
        assert recorded_configs(*of) == [two, three, one]
        assert recorded_configs(*of, count=2) == [two, three]
        # Under this clock everything takes three times as long: the same configs are collected where it is gone on.
        for candidate in measured_on(here, gemm, [(two, 30.0), (four, 60.0)]):
            store.add_candidate(candidate)
        assert recorded_configs(*of, count=2) == [two, three]
        assert recorded_configs(*of) == [two, three, one, four]
        with pytest.raises(InvalidRequest, match="is recorded in isolated that is still valid; leave out --recorded"):
            recorded_configs(gemm, here, "isolated", [mma], store)
