"""Random and named cases of a family: what they cover, and the few that cover as much."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.helpers.named_config import named_config
from tests.helpers.wgmma_paths import named_cases
from tests.verification.covering_cases import classes
from tests.verification.wgmma_sample import FAMILY, cases
from tirgemm.errors import InvalidConfig
from tirgemm.families import family_named
from tirgemm.families.base import rejected
from tirgemm.families.simt.tiling import PIPELINES, READS
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from verification.altered import lowered
from verification.cases import Case, missing_choices, random_cases, special_cases
from verification.covering import build_cost, covering, paths, small_cases, warps
from verification.sanitize import plantable

H200 = named_device("sm_90a")


def test_random_cases_are_reproducible_valid_and_different() -> None:
    assert random_cases(FAMILY, H200, 12, seed=5) == cases()[:12]
    assert len(set(cases())) == 90
    for case in cases():
        assert FAMILY.supports(case.gemm, H200) is None
        FAMILY.space(case.gemm, H200).check(case.config)
        assert rejected(FAMILY, case.gemm, case.config, H200) is None


def test_random_cases_have_every_choice_of_every_knob() -> None:
    # The rarest, long splits, need hundreds of cases: the script itself checks those that it draws.
    assert [choice for choice in missing_choices(FAMILY, H200, cases()) if choice[0] != "split"] == []


def test_a_choice_that_no_case_has_is_missed() -> None:
    without = [case for case in cases() if case.config["tile_n"] != 64]
    assert ("tile_n", 64) in missing_choices(FAMILY, H200, without)


def test_special_cases_have_sizes_of_one_in_every_layout() -> None:
    actual, _ = special_cases(FAMILY, H200)
    for size in ("m", "n", "k"):
        assert {case.gemm.layout for case in actual if getattr(case.gemm, size) == 1} == {"nn", "nt", "tn", "tt"}


def test_named_paths_are_configs_that_the_rules_accept() -> None:
    cases = list(named_cases(H200))
    assert {case.config["load"] for case in cases} == {"tma", "repack", "copy"}
    assert {case.config["reduction"] for case in cases if case.config["split"] > 1} == {
        "block",
        "cluster",
        "kernel",
    }


def test_a_named_config_with_a_wrong_choice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="tile_m=65"):
        named_config(FAMILY, Gemm.parse("777x1003x136:bf16:nt"), H200, "tile_m=65")


def test_few_cases_cover_what_many_cover() -> None:
    of = classes(cases())
    few = covering(cases(), of, build_cost)
    assert len(few) < 30
    assert frozenset().union(*(of(case) for case in few)) == frozenset().union(*(of(case) for case in cases()))
    kinds = {case.config["schedule"] for case in covering(small_cases(FAMILY, H200, 60, plain=True), paths, build_cost)}
    assert kinds == {"cooperative", "pingpong"}


def test_simt_is_drawn_with_fp32_every_pipeline_and_what_only_rungs_choose() -> None:
    cases = small_cases(family_named("simt"), H200, 60, plain=True)
    actual = {feature for case in covering(cases, paths, build_cost) for feature in case.features}
    assert {("pipeline", name) for name in PIPELINES} | {("reads", name) for name in READS} <= actual
    assert {("barriers", 1), ("barriers", 2)} <= actual
    assert {case.gemm.dtype for case in cases} == {"f16", "bf16", "f32"}
    assert warps(plantable(cases)) > 1


@pytest.mark.parametrize(
    ("family", "knobs", "count"),
    [
        ("mma", "tile_m=64 tile_n=32 warps_m=2 warps_n=1", 2),
        ("simt", "block_m=64 block_n=64 block_k=8 thread_m=4 thread_n=4 lanes_n=8 piece=4", 8),
    ],
)
def test_warps_of_a_block_are_what_the_kernel_is_launched_with(family: str, knobs: str, count: int) -> None:
    gemm = Gemm.parse("1100x1160x520:f16:nn")
    case = Case(gemm, named_config(family_named(family), gemm, H200, knobs))
    launch, _ = lowered(case.gemm, case.config, H200)
    assert warps(case) == count
    x, y, z = cast(Any, launch.kernels[0]).block
    assert x * y * z == 32 * count
