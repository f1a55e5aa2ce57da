"""Variants of the fastest config with other cache policies: when they are proposed, and what is expected of them."""

from __future__ import annotations

from tests.helpers.ranking import H200
from tests.helpers.toy_family import DEVICE, Toy
from tirgemm import Config, Gemm
from tirgemm.families import family_named
from tirgemm.families.common.knob_parts import CACHE_POLICY
from tirgemm.families.wgmma import Wgmma
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.search.neighbourhood import cache_variants
from tirgemm.tuning.search.search import LEAST_TRIED, Search, SearchOptions

GEMM = Gemm.parse("768x1536x4096:f16:nt")
WGMMA = Wgmma()


def measured(config: Config, us: float) -> Candidate:
    return Candidate(
        GEMM, H200.key, "sustained", config, Status.MEASURED, sample_sets=(SampleSet((us,) * 3, "search"),)
    )


def searched(variants: int, us: float = 100.0) -> tuple[Search, list[Config]]:
    """A search whose first configs have come back, the third as the fastest, and those configs."""
    search = Search(GEMM, H200, "sustained", [WGMMA], SearchOptions(first=16, variants=variants))
    first = [proposal.config for proposal in search.ask(len(search.first()))]
    assert len(first) >= LEAST_TRIED
    search.tell([measured(config, us + (number != 2) * (1 + number)) for number, config in enumerate(first)])
    return search, first


def test_variants_differ_in_cache_policies_alone_and_those_of_one_knob_come_first() -> None:
    space = WGMMA.space(GEMM, H200)
    config = WGMMA.default(GEMM, H200, "sustained")
    variants = cache_variants(config, space)
    assert len(set(variants)) == len(variants) == 11
    changed = [[name for name, value in one.knobs if value != config[name]] for one in variants]
    assert {name for names in changed for name in names} == set(CACHE_POLICY)
    assert [len(names) for names in changed] == [1] * 5 + [2] * 6


def test_families_without_cache_policies_have_no_variants() -> None:
    for name in ("simt", "mma", "wmma"):
        family = family_named(name)
        assert cache_variants(family.default(GEMM, H200, "sustained"), family.space(GEMM, H200)) == []
    assert cache_variants(Toy().default(GEMM, DEVICE, "sustained"), Toy().space(GEMM, DEVICE)) == []


def test_variants_of_the_fastest_come_behind_the_first_configs_and_before_the_evolution() -> None:
    search, first = searched(6)
    proposals = search.ask(8)
    expected = cache_variants(first[2], WGMMA.space(GEMM, H200))[:6]
    assert [proposal.config for proposal in proposals[:6]] == expected
    assert not {proposal.config for proposal in proposals[6:]} & {*first, *expected}
    assert search.variants() == []


def test_a_variant_that_is_the_fastest_has_variants_of_its_own() -> None:
    search, first = searched(6)
    one, *others = (proposal.config for proposal in search.ask(6))
    search.tell([measured(one, 50.0), *(measured(other, 200.0) for other in others)])
    new = [search.filter.config(point) for point in search.variants()]
    assert new
    assert not {*new} & {*first, one, *others}
    assert all(config["eviction"] == one["eviction"] for config in new if config["l2_promotion"] != 2)


def test_nothing_is_said_of_what_variants_gain_since_no_model_knows() -> None:
    search, _ = searched(6)
    assert search.expected_gain(search.ask(8)) is None
    assert search.expected_gain(search.ask(8)) is not None
    plain, _ = searched(0)
    assert plain.expected_gain(plain.ask(8)) is not None
