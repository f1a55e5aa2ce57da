"""Sources that are altered: the sites of synchronisation, mutants, delays and bounded waits."""

from __future__ import annotations

import pytest

from tests.helpers.named_config import named_config
from tests.verification.wgmma_sample import FAMILY, STAGED_PINGPONG, source
from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from verification import alterations
from verification.altered import build, lowered, with_alteration

H200 = named_device("sm_90a")


def test_sites_are_the_lines_that_synchronise() -> None:
    sites = alterations.sites(source())
    words = " ".join(site.what for site in sites)
    for word in (
        "mbarrier.try_wait",
        "mbarrier.arrive",
        "fence.proxy.async",
        "barrier.cluster",
        "bar.sync",
        "wgmma.wait_group",
    ):
        assert word in words
    assert {site.where.partition(": ")[2] for site in sites} == {"start", "producer", "consumer", "epilogue"}
    lines = source().splitlines()
    assert all(lines[site.line].strip() == site.text for site in sites)


@pytest.mark.parametrize(
    ("family", "knobs", "parts"),
    [
        ("mma", "tile_m=64 tile_n=32 warps_m=2 warps_n=1 stages=3 epilogue=staged", {"start", "steps", "end"}),
        ("wmma", "tile_m=64 tile_n=32 warps_m=2 warps_n=1 stages=3", {"start", "steps", "end"}),
    ],
)
def test_sites_of_other_families_are_before_in_and_behind_their_loop(family: str, knobs: str, parts: set[str]) -> None:
    gemm = Gemm.parse("1100x1160x520:f16:nn")
    _, text = lowered(gemm, named_config(family_named(family), gemm, H200, knobs), H200)
    sites = alterations.sites(text)
    assert {site.where.partition(": ")[2] for site in sites} == parts
    assert {"__syncthreads", "cp.async.commit_group", "cp.async.wait_group 1"} <= {site.what for site in sites}


def test_each_mutant_changes_its_lines_only() -> None:
    before = source().splitlines()
    for mutant in alterations.mutants(source()):
        after = alterations.altered(source(), mutant.alteration).splitlines()
        if mutant.alteration.startswith("drop"):
            numbers = [int(number) for number in mutant.alteration.partition(":")[2].split(",")]
            assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == numbers
        else:
            assert len(set(after) - set(before)) >= 2


def test_delays_stand_before_every_synchronisation_but_the_wgmmas_own() -> None:
    wanted = sum("wgmma." not in site.assembly for site in alterations.sites(source()))
    kernels = source().count('extern "C" __global__') // 2
    for words in ("delay", "limit+delay", "delay+limit"):
        assert alterations.altered(source(), words).count("tirgemm_delay(") == wanted + kernels + 1
    assert alterations.altered(source(), "late").count("tirgemm_delay(") == kernels + 1


def test_bounded_waits_end_in_a_trap() -> None:
    text = alterations.altered(source(), "limit")
    assert text.count("trap;") == 1
    assert "LAB_WAIT" in text


@pytest.mark.parametrize("alteration", ["", "late", "limit+delay", "race", "outside"])
def test_altered_sources_compile_without_spills_or_serialised_wgmmas(alteration: str) -> None:
    gemm = Gemm.parse(STAGED_PINGPONG[0])
    config = named_config(FAMILY, gemm, H200, STAGED_PINGPONG[1])
    binary = build(gemm, with_alteration(config, alteration), H200)
    assert (binary.resources["spill_bytes"], binary.resources["serialised"]) == (0, 0)
    assert binary.sources["kernel.cu"] == (alterations.altered(source(), alteration) if alteration else source())


@pytest.mark.parametrize("alteration", ["dely", "drop:1", "drop:", "weaken:x", "limit+drop:0"])
def test_an_unknown_alteration_is_refused(alteration: str) -> None:
    with pytest.raises(InvalidRequest, match="alteration"):
        alterations.altered(source(), alteration)
