"""What a search's next batch is expected to gain, and the end of a search by it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.helpers.toy_family import DEVICE, Toy, simulated_us
from tirgemm.config import Knob
from tirgemm.gemm import Gemm
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.search.expected_gain import (
    PRIOR_ERROR,
    ModelErrors,
    decayed_gain,
    expected_gain,
    gains,
    improvement,
    spread,
)
from tirgemm.tuning.search.search import LEAST_TRIED, Search

GEMM = Gemm(1023, 1021, 1027)
FLAWLESS = ModelErrors(np.zeros(50), np.zeros(50))


def test_one_member_improves_as_the_closed_form_says() -> None:
    assert improvement(np.array([0.0]), 0.1) == pytest.approx(0.1 / math.sqrt(2 * math.pi), rel=1e-3)
    # mean * cdf(mean / error) + error * pdf(mean / error)
    below = -0.05 * 0.5 * math.erfc(0.5 / math.sqrt(2)) + 0.1 * math.exp(-0.125) / math.sqrt(2 * math.pi)
    assert improvement(np.array([-0.05]), 0.1) == pytest.approx(below, rel=1e-3)


def test_a_batch_improves_as_its_fastest_member_does() -> None:
    draws = np.random.default_rng(0).normal([0.0, -0.02, -0.1], 0.05, (200_000, 3))
    expected = np.maximum(0.0, draws.max(axis=1)).mean()
    assert improvement(np.array([0.0, -0.02, -0.1]), 0.05) == pytest.approx(expected, rel=0.01)
    assert improvement(np.array([]), 0.05) == 0.0


def test_a_model_that_is_right_expects_nothing_of_slower_configs() -> None:
    assert expected_gain(np.array([-0.05, -0.1]), FLAWLESS, [10.0] * 24) < 0.0005
    assert expected_gain(np.array([0.05, -0.1]), FLAWLESS, [10.0] * 24) == pytest.approx(math.expm1(0.05), rel=0.01)


def test_errors_near_the_best_count_most() -> None:
    errors = np.array([0.01, -0.01] * 10 + [0.5, -0.5] * 10)
    fast = spread(ModelErrors(errors, np.array([0.0] * 20 + [-1.0] * 20)))
    slow = spread(ModelErrors(errors, np.array([-1.0] * 20 + [0.0] * 20)))
    assert fast < 0.03
    assert slow > 0.3
    assert spread(ModelErrors(errors + 0.7, np.zeros(40))) == pytest.approx(spread(ModelErrors(errors, np.zeros(40))))
    assert spread(ModelErrors(np.zeros(0), np.zeros(0))) == PRIOR_ERROR


def test_what_the_last_batches_gained_fades_by_half() -> None:
    times = [10.0] * 8 + [8.0] + [10.0] * 7 + [9.0] * 8
    assert gains(times) == pytest.approx([math.log(10 / 8), 0.0])
    assert decayed_gain(gains(times)) == pytest.approx(math.log(10 / 8) / 4)
    assert decayed_gain([]) == 0.0
    assert expected_gain(np.array([-1.0]), FLAWLESS, times) == pytest.approx(math.expm1(math.log(10 / 8) / 4))


def searched(seed: int) -> tuple[int, float, list[float | None]]:
    """Trials of a simulated space until little is expected of more, the best over the optimum, and all expectations."""
    # Small enough that every point is scored: a round of evolution takes a second.
    toy = Toy(knobs=tuple(Knob(k.name, k.choices[: 3 if k.name.startswith("block") else 2]) for k in Toy().knobs))
    search = Search(GEMM, DEVICE, "sustained", [toy], seed=seed)
    valid = [c for c in toy.space(GEMM, DEVICE) if all(r.check(GEMM, c, DEVICE) is None for r in toy.rules)]
    optimum = min(simulated_us(GEMM, config) for config in valid)
    expectations: list[float | None] = []
    while True:
        proposals = search.ask(8)
        expectations.append(search.expected_gain(proposals))
        if expectations[-1] is not None and expectations[-1] < Effort.STANDARD.least_gain:
            assert search.best_us is not None
            return search.tried, search.best_us / optimum, expectations
        for proposal in proposals:
            samples = (SampleSet((simulated_us(GEMM, proposal.config),)),)
            search.tell(
                [Candidate(GEMM, DEVICE.key, "sustained", proposal.config, Status.MEASURED, sample_sets=samples)]
            )


def test_a_search_of_a_simulated_space_ends_near_the_optimum_long_before_the_space() -> None:
    trials, over, expectations = searched(3)
    assert expectations[: LEAST_TRIED // 8] == [None] * (LEAST_TRIED // 8), "nothing is said of so few"
    assert LEAST_TRIED <= trials < 100
    assert over < 1.05
    assert searched(3) == (trials, over, expectations)
