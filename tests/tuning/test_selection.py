"""Selection of the finalist that is served."""

from __future__ import annotations

import random
from statistics import NormalDist

import numpy as np
import pytest

from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.intervals import CONFIDENCE, RESAMPLES, median_interval, median_ratios
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.selection import choose, finalists_of, ratio_low, ratio_to_default


def samples(median: float, *, spread: float = 0.004, count: int = 51, seed: int = 0) -> tuple[float, ...]:
    """Samples with exactly this median and normal noise, in a random order."""
    noise = [NormalDist(1, spread).inv_cdf((i + 0.5) / count) for i in range(count)]
    random.Random(seed).shuffle(noise)
    return tuple(median * n for n in noise)


def finalists(*medians: float, spread: float = 0.004) -> list[SampleSet]:
    """The default first, then the others, each with the default's samples beside its own."""
    own = [samples(median, spread=spread, seed=i) for i, median in enumerate(medians)]
    return [SampleSet(s, "selection", {"default": own[0]} if i else {}) for i, s in enumerate(own)]


def test_the_clearly_fastest_is_chosen_and_its_bound_lies_below_its_ratio() -> None:
    sets = finalists(100.0, 80.0, 90.0)
    choice = choose(sets, [(0, 0), (0, 3), (0, 1)], default=0)
    ratio, low = ratio_to_default(sets[choice.index])
    assert choice.index == 1
    assert choice.lead == ratio == pytest.approx(1.25, rel=0.01)
    assert 1.2 < low < ratio
    assert "as fast as the default" in choice.reason


def test_the_default_stays_where_the_gain_is_within_the_noise() -> None:
    choice = choose(finalists(100.0, 99.9, 100.3, spread=0.03), [(0, 5), (0, 0), (0, 1)], default=0)
    assert (choice.index, choice.lead) == (0, 1.0)
    assert "the default stays" in choice.reason


def test_the_default_stays_where_all_others_are_slower() -> None:
    assert choose(finalists(100.0, 104.0, 120.0), [(9,), (0,), (1,)], default=0).index == 0


def test_the_default_alone_is_chosen() -> None:
    choice = choose(finalists(7.0), [(0,)], default=0)
    assert choice.index == 0
    assert "only finalist" in choice.reason


def test_a_tie_goes_to_the_simpler_config() -> None:
    sets = finalists(100.0, 80.0, 80.1, spread=0.01)
    assert choose(sets, [(0, 0), (0, 7), (0, 2)], default=0).index == 2
    assert choose(sets, [(0, 0), (0, 2), (0, 7)], default=0).index == 1
    assert "simpler" in choose(sets, [(0, 0), (0, 7), (0, 2)], default=0).reason


def test_noise_does_not_excuse_a_choice_several_percent_slower() -> None:
    sets = finalists(100.0, 60.0, 66.0, spread=0.3)
    assert choose(sets, [(0, 0), (0, 7), (0, 2)], default=0).index == 1


def test_a_simpler_config_that_is_clearly_slower_does_not_win_the_tie() -> None:
    assert choose(finalists(100.0, 80.0, 81.5, spread=0.002), [(0,), (7,), (2,)], default=0).index == 1


def test_without_its_default_the_fastest_of_the_rest_is_chosen_even_where_it_is_slower() -> None:
    _, *rest = finalists(100.0, 103.0, 110.0)
    choice = choose(rest, [(1,), (0,)], default=None)
    assert choice.index == 0
    assert choice.lead < 1.0
    assert "the default is out" in choice.reason


def test_what_is_served_stays_unless_another_is_faster_with_confidence() -> None:
    ranks = [(0, 0), (0, 9), (0, 1)]
    noisy = finalists(100.0, 80.0, 79.9, spread=0.03)
    assert choose(noisy, ranks, default=0).index == 2, "the simpler of two that tie"
    stays = choose(noisy, ranks, served=1, default=0)
    assert (stays.index, stays.lead) == (1, 1.0)
    assert "the kernel that is served stays" in stays.reason
    assert ratio_to_default(noisy[stays.index])[0] == pytest.approx(1.25, rel=0.02)
    sets = finalists(100.0, 80.0, 76.0)
    faster = choose(sets, ranks, served=1, default=0)
    assert faster.index == 2
    assert faster.lead == pytest.approx(80 / 76, rel=0.01), "over what it replaces, not over the default"
    assert ratio_to_default(sets[faster.index])[0] == pytest.approx(100 / 76, rel=0.01)


def test_the_default_takes_the_place_of_what_is_served_only_where_it_is_faster_with_confidence() -> None:
    ranks = [(0, 0), (0, 9)]
    assert choose(finalists(100.0, 99.9, spread=0.03), ranks, served=1, default=0).index == 1
    assert choose(finalists(100.0, 104.0), ranks, served=1, default=0).index == 0
    assert choose(finalists(100.0, 99.9, spread=0.03), ranks, served=0, default=0).index == 0


def test_a_drift_that_both_suffered_does_not_hide_a_small_gain() -> None:
    drift = [1 + 0.2 * i / 50 for i in range(51)]
    default = tuple(100 * d * n for d, n in zip(drift, samples(1.0, seed=1), strict=True))
    ours = tuple(98 * d * n for d, n in zip(drift, samples(1.0, seed=2), strict=True))
    assert ratio_low(default, ours) > 1.0


def test_sets_of_different_lengths_are_compared() -> None:
    assert 1.15 < ratio_low(samples(120.0, count=37), samples(100.0, count=11, seed=5)) < 1.25


def test_the_same_samples_give_the_same_choice() -> None:
    sets = finalists(100.0, 98.0, 97.9, spread=0.02)
    assert choose(sets, [(0,), (2,), (1,)], default=0) == choose(sets, [(0,), (2,), (1,)], default=0)


@pytest.mark.parametrize(
    ("sets", "ranks", "words"),
    [
        ([], [], "needs finalists"),
        (finalists(1.0, 2.0), [(0,)], "2 and 1"),
        ([SampleSet(())], [(0,)], "without samples"),
        ([SampleSet((1.0,)), SampleSet((2.0,))], [(0,), (1,)], "no samples of the default"),
    ],
)
def test_what_cannot_be_compared_is_refused(sets: list[SampleSet], ranks: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        choose(sets, ranks, default=0)


@pytest.mark.parametrize("count", [1, 2, 51, 256, 301])
def test_resampled_medians_are_those_of_the_resampled_values(count: int) -> None:
    """To the last bit, with ties among the values, and where ranks need a second byte: published intervals come of
    them."""
    theirs, ours = (np.round(np.random.default_rng(seed).lognormal(size=count), 1 + seed) for seed in (0, 1))
    random = np.random.default_rng(3)
    rows, columns = (random.integers(0, count, (RESAMPLES, count)) for _ in range(2))
    medians = np.median(theirs[rows], axis=1)
    paired, apart = (median_ratios(theirs.tolist(), ours.tolist(), paired=paired, seed=3) for paired in (True, False))
    assert np.array_equal(paired, medians / np.median(ours[rows], axis=1))
    assert np.array_equal(apart, medians / np.median(ours[columns], axis=1))
    interval = median_interval(theirs.tolist(), seed=3)
    assert [interval.low, interval.high] == list(np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))


def cut(tile: int, policy: int) -> Config:
    return Config("wgmma", (("tile_m", tile), ("l2_promotion", policy)))


def test_at_most_half_of_the_finalists_cut_the_work_alike() -> None:
    alike = {cut(64, policy): 10.0 + policy / 10 for policy in range(5)}
    near = {cut(128, 0): 10.8, cut(128, 1): 10.9, cut(192, 0): 11.0}
    assert finalists_of(alike | near, 6) == [*[*alike][:3], *near]
    assert finalists_of(alike | near, 3) == [*[*alike][:2], cut(128, 0)]
    assert finalists_of(alike | near, 1) == [cut(64, 0)]
    assert finalists_of({}, 3) == []


def test_more_of_them_do_where_no_other_cut_is_near() -> None:
    times = {cut(64, 0): 10.0, cut(64, 1): 10.2, cut(64, 2): 10.4, cut(128, 0): 10.6, cut(64, 3): 10.7}
    assert finalists_of(times, 4) == [cut(64, 0), cut(64, 1), cut(64, 2), cut(128, 0)]
    far = times | {cut(128, 0): 11.2}
    assert finalists_of(dict(sorted(far.items(), key=lambda pair: pair[1])), 4) == [cut(64, each) for each in range(4)]
