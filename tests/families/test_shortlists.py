"""Lists that ``mma`` and ``wmma`` rank, and how those of several families become one."""

from __future__ import annotations

from typing import Any

import pytest

from tirgemm import Gemm
from tirgemm.config import Config
from tirgemm.errors import Unsupported
from tirgemm.families import choice, family_named, supporting
from tirgemm.families.base import Family, Rule, WithShortlist, rejected
from tirgemm.families.choice import (
    AS_FAST,
    PROMISING,
    defaults_of,
    expected_time_us,
    fastest_families,
    opening,
    ranked_defaults,
)
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.families.mma import Mma
from tirgemm.families.tensorcore import default_choice
from tirgemm.hardware import named_device
from tirgemm.tuning.search.headroom import headroom

H200, SM_86 = named_device("sm_90a"), named_device("sm_86")
SMALL, LARGE = Gemm.parse("64x256x256:f16:tn"), Gemm.parse("4096x4096x4096:f16:nt")
CUT = ("tile_m", "tile_n", "warps_m", "warps_n", "split")


def shortlist(family: Family, gemm: Gemm, count: int, *, trained: bool = True) -> list[Config]:
    assert isinstance(family, WithShortlist)
    return family.shortlist(gemm, H200, "sustained", count, trained=trained)


@pytest.mark.parametrize("name", ["mma", "wmma"])
def test_a_model_ranks_the_variants_of_cuts_and_lists_one_of_each(name: str) -> None:
    family, model = family_named(name), ranking_model(H200)
    assert model is not None
    assert model.covers(name, SMALL, "sustained")
    listed, estimated = shortlist(family, SMALL, 8), shortlist(family, SMALL, 8, trained=False)
    assert len(set(listed)) == len(listed) == 8
    assert all(rejected(family, SMALL, config, H200) is None for config in listed)
    expected = [expected_time_us(family, config, SMALL, H200, "sustained", model) for config in listed]
    assert expected[:6] == sorted(expected[:6]), "behind those of the cuts that it ranks come others"
    assert expected[0] < expected_time_us(family, estimated[0], SMALL, H200, "sustained", model)
    assert family.default(SMALL, H200, "sustained") == listed[0]
    estimates = [family.predict_us(SMALL, config, H200, "sustained") for config in estimated]
    assert estimates == pytest.approx(sorted(estimates))


class OnlyDirect(Mma):
    """``mma`` with no rule but that D leaves from the registers."""

    rules = (Rule("direct", lambda _, config, __: None if config["epilogue"] == "direct" else "not direct"),)


def test_a_variant_stands_in_where_no_usual_config_passes() -> None:
    usual = shortlist(family_named("mma"), LARGE, 3, trained=False)
    assert {config["epilogue"] for config in usual} == {"staged"}

    def cuts(*_: Any) -> default_choice.ConfigsOfCuts:
        return default_choice.ConfigsOfCuts(iter(usual), lambda config: iter([config.with_(epilogue="direct")]))

    made = default_choice.shortlist(OnlyDirect(), cuts, LARGE, H200, "sustained", 2, trained=False)
    assert made == [config.with_(epilogue="direct") for config in usual[:2]]


def test_only_families_that_may_be_the_fastest_are_ranked_by_the_model() -> None:
    for gemm, promising in ((SMALL, True), (LARGE, False)):
        families = supporting(gemm, H200)
        defaults = {family.name: config for family, config in ranked_defaults(families, gemm, H200, "sustained")}
        mma = family_named("mma")
        estimated = {f.name: shortlist(f, gemm, 1, trained=False)[0] for f in families if isinstance(f, WithShortlist)}
        times = {name: family_named(name).predict_us(gemm, c, H200, "sustained") for name, c in estimated.items()}
        assert (times["mma"] <= PROMISING * min(times.values())) is promising
        assert defaults["mma"] == (mma.default(gemm, H200, "sustained") if promising else estimated["mma"])
        listed = [c for c in opening(families, gemm, H200, "sustained", 8) if c.family == "mma"]
        assert (len(listed) > 1) is promising


def test_the_estimate_of_a_family_that_ranks_no_configs_shuts_out_none() -> None:
    """Of this problem an H200 took 7.6 us by wgmma, 8.3 by wmma and 14.9 by simt, whose estimate is the least."""
    gemm = Gemm.parse("6780x431x27:bf16:nn")
    families = supporting(gemm, H200)
    estimates = {f.name: f.predict_us(gemm, f.default(gemm, H200, "sustained"), H200, "sustained") for f in families}
    assert estimates["wgmma"] > PROMISING * estimates["simt"]
    (first, config), *_ = ranked_defaults(families, gemm, H200, "sustained")
    assert (first.name, config) == ("wgmma", first.default(gemm, H200, "sustained"))


def test_without_a_model_lists_are_merged_by_their_estimates() -> None:
    gemm = Gemm.parse("512x512x512:f16:nt")
    assert ranking_model(SM_86) is None
    first = opening(supporting(gemm, SM_86), gemm, SM_86, "sustained", 8)[:8]
    assert {config.family for config in first} == {"mma", "wmma"}
    times = [family_named(config.family).predict_us(gemm, config, SM_86, "sustained") for config in first]
    assert times == pytest.approx(sorted(times))


@pytest.mark.parametrize("count", [0, 8])
def test_a_family_without_a_default_costs_only_itself(count: int) -> None:
    """Where n makes more blocks than a grid of wmma's has."""
    gemm, wmma = Gemm.parse("1..16x8400000x64:f16:nt"), family_named("wmma")
    families = supporting(gemm, H200)
    assert wmma in families
    with pytest.raises(Unsupported, match="wmma has no default"):
        wmma.default(gemm, H200, "sustained")
    assert {family.name for family, _ in ranked_defaults(families, gemm, H200, "sustained")} == {"wgmma", "mma"}
    assert {config.family for config in opening(families, gemm, H200, "sustained", count)} == {"wgmma", "mma"}
    assert [f.name for f in defaults_of(families, gemm, H200, "sustained")] == ["mma", "wgmma"]
    assert headroom(gemm, H200, "sustained") >= 0


def test_a_problem_for_which_no_family_has_a_default_is_refused_with_their_names() -> None:
    gemm = Gemm.parse("1..7x16040588x16:bf16:nt:batch=7:align=8:beta")
    with pytest.raises(Unsupported, match=rf"no family has a default for {gemm} on sm_86: of mma, wmma "):
        ranked_defaults(supporting(gemm, SM_86), gemm, SM_86, "sustained")


def test_families_that_the_model_does_not_tell_apart_are_all_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    families = supporting(SMALL, H200)
    ranked = [family.name for family, _ in ranked_defaults(families, SMALL, H200, "sustained")]
    beside = {ranked[0]: 100.0, ranked[1]: 100.0 * AS_FAST, ranked[2]: 101.0 * AS_FAST}
    monkeypatch.setattr(choice, "expected_time_us", lambda family, *_: beside.get(family.name, 1000.0))
    choice._ranked_defaults.cache_clear()
    assert fastest_families(families, SMALL, H200, "sustained") == {ranked[0], ranked[1]}
    monkeypatch.setattr(choice, "ranking_model", lambda _: None)
    (best, *_) = ranked_defaults(families, SMALL, H200, "sustained")
    assert fastest_families(families, SMALL, H200, "sustained") == {best[0].name}, "estimates say nothing of that"
    choice._ranked_defaults.cache_clear()
