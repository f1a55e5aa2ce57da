"""Kernel sets of defaults: where a range of m is cut, and that the parts serve it."""

from __future__ import annotations

import itertools
import statistics

import pytest

from tirgemm import Config, Gemm
from tirgemm.detect import device
from tirgemm.errors import Unsupported
from tirgemm.families import family_named, supporting
from tirgemm.families.base import require_valid
from tirgemm.families.choice import expected_time_us, ranked_defaults
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.tuning.default_set import default_parts
from tirgemm.tuning.kernel_set.cut import MOST_KERNELS


@pytest.mark.parametrize(
    ("text", "place", "least"),
    [
        ("1..2048x4096x4096:f16:nt", "sm_90a", 4),
        ("3..700x1000x1002:bf16:nt:bias:invariant", "sm_90a", 2),
        ("1..8192x1024x1024:f32:nt", "cpu", 1),
        ("4..5x64x64:f32:nt", "cpu", 1),
        # What copies A in front of the product, which a fixed m of 32 needs nothing for.
        ("31..32x576x70:bf16:tn:alpha:beta:invariant", "sm_90a", 1),
        ("5..6x576x64:f16:tt", "sm_90a", 1),
    ],
)
def test_parts_follow_one_another_and_their_configs_are_valid(text: str, place: str, least: int) -> None:
    gemm, where = Gemm.parse(text), device(place)
    parts = default_parts(gemm, where, "sustained")
    assert least <= len(parts) <= MOST_KERNELS
    assert parts[0].gemm.m_min == gemm.m_min
    assert parts[-1].gemm.m_max == gemm.m_max
    for before, part in itertools.pairwise(parts):
        assert before.gemm.m_max + 1 == part.gemm.m_min
        assert before.config != part.config
    for part in parts:
        require_valid(family_named(part.config.family), part.gemm, part.config, where)
        assert part.gemm.with_(m=gemm.m) == gemm


@pytest.mark.parametrize("sides", ["4096x14336", "1600x6400"])
def test_by_expectation_no_m_has_much_less_than_the_default_for_it(sides: str) -> None:
    where, model = device("sm_90a"), ranking_model(device("sm_90a"))
    parts = default_parts(Gemm.parse(f"1..8192x{sides}:f16:nt"), where, "sustained")

    def expected_us(gemm: Gemm, config: Config) -> float:
        return expected_time_us(family_named(config.family), config, gemm, where, "sustained", model)

    def share(m: int) -> float:
        """The time of the default for this one m, over that of the set's kernel."""
        gemm = Gemm.parse(f"{m}x{sides}:f16:nt")
        _, own = ranked_defaults(supporting(gemm, where), gemm, where, "sustained")[0]
        served = next(part.config for part in parts if part.gemm.m_min <= m <= part.gemm.m_max)
        return expected_us(gemm, own) / expected_us(gemm, served)

    shares = {m: share(m) for m in (1, 5, 13, 34, 89, 144, 233, 285, 377, 610, 987, 1597, 2063, 2584, 4181, 6765)}
    assert min(shares.values()) >= 0.9, shares
    assert statistics.geometric_mean(shares.values()) >= 0.97, shares


def test_what_no_family_writes_is_refused() -> None:
    with pytest.raises(Unsupported):
        default_parts(Gemm.parse("1..64x64x64:f16:nt:acc=f16"), device("cpu"), "sustained")
