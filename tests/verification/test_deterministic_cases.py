"""Cases of the tests of determinism and of dependent launches on a GPU (``tests/gpu``): which they are, and that their
altered sources compile."""

from __future__ import annotations

import random
import re

import pytest

from tests.verification.covering_cases import SPLITTING, chained_cases, deterministic_cases, splits_k
from tirgemm.families import family_named
from tirgemm.hardware import named_device
from tirgemm.launch import DEPENDENT_LAUNCH
from verification.alterations import DELAY, LATE, altered
from verification.altered import DEPENDENT, build, lowered, with_alteration
from verification.cases import Case, random_gemm
from verification.covering import build_cost, small_cases

H200 = named_device("sm_90a")
CUDA_FAMILIES = ("simt", "mma", "wmma", "wgmma")


def reduction(case: Case) -> str:
    """How the parts of k are added: families without the knob have a second kernel for it."""
    return str(dict(case.config.knobs).get("reduction", "kernel"))


def test_families_that_split_k_are_those_whose_drawn_cases_do() -> None:
    drawn = {name: small_cases(family_named(name), H200, 6, plain=True) for name in CUDA_FAMILIES}
    assert {name for name, cases in drawn.items() if any(map(splits_k, cases))} == set(SPLITTING)


@pytest.mark.parametrize("family", SPLITTING)
def test_both_kernels_of_a_split_can_be_late_delayed_and_launched_early(family: str) -> None:
    split = [case for case in deterministic_cases(family_named(family), H200) if splits_k(case)]
    assert all(case.gemm.deterministic for case in split)
    assert {reduction(case) for case in split} == ({"block", "cluster", "kernel"} if family == "wgmma" else {"kernel"})
    case = min((case for case in split if reduction(case) == "kernel"), key=build_cost)
    launch, text = lowered(case.gemm, case.config, H200)
    symbols = [kernel.symbol for kernel in launch.kernels]
    assert len(symbols) > 1, "one adds what the other leaves"
    late = altered(text, LATE).splitlines()
    entries = [line for line in late if line.startswith('extern "C"') and "tirgemm_delay(" in line]
    assert [symbol for symbol in symbols if any(f" {symbol}(" in entry for entry in entries)] == symbols
    delayed = build(case.gemm, with_alteration(case.config, f"{DEPENDENT}+{DELAY}"), H200)
    source = delayed.sources["kernel.cu"]
    assert delayed.resources["spill_bytes"] == 0
    assert source.count("tirgemm_delay(") > len(entries) + 1, "more than the starts are delayed"
    for kernel in delayed.launch.kernels:
        assert DEPENDENT_LAUNCH in kernel.attributes
        assert re.search(
            rf"\b{kernel.symbol}\([^;{{]*\) \{{\s*asm[^;]*launch_dependents;[^;]*;\s*asm[^;]*wait;", source
        )


def offered(family: str, knob: str) -> set[object]:
    """The choices of a knob that random problems have; none where the family does not have the knob."""
    rng, of = random.Random(3), family_named(family)
    gemms = [gemm for gemm in (random_gemm(rng) for _ in range(300)) if gemm and of.supports(gemm, H200) is None]
    knobs = (each for gemm in gemms for each in of.space(gemm, H200).knobs)
    return {choice for each in knobs if each.name == knob for choice in each.choices}


@pytest.mark.parametrize("family", CUDA_FAMILIES)
def test_chained_cases_write_what_they_read_in_every_way(family: str) -> None:
    cases = chained_cases(family_named(family), H200)
    assert all(case.gemm.n == case.gemm.k and case.gemm.layout[0] == "n" for case in cases)
    loads = {knobs["load"] for case in cases if "load" in (knobs := dict(case.config.knobs))}
    assert loads == offered(family, "load")
    reductions = {reduction(case) for case in cases if splits_k(case)}
    assert reductions == (offered(family, "reduction") or ({"kernel"} if family in SPLITTING else set()))


def test_chained_cases_of_wgmma_load_and_add_in_three_ways_each() -> None:
    cases = chained_cases(family_named("wgmma"), H200)
    assert {case.config["load"] for case in cases} == {"tma", "repack", "copy"}
    assert {reduction(case) for case in cases if splits_k(case)} == {"block", "cluster", "kernel"}
