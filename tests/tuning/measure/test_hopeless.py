"""When a search's candidate is timed no further: it is far slower than what it runs beside."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

import pytest

from tirgemm.rounds import SampleBlock
from tirgemm.tuning.measure.hopeless import timed
from tirgemm.tuning.measure.requests import RaceOptions

SEARCH = RaceOptions("sustained", 12, 0.0, "search")


def replays(times: Iterable[float]) -> SampleBlock:
    """A contender's turns, of two samples each."""
    samples = itertools.chain.from_iterable((us, us) for us in times)
    return lambda: list(itertools.islice(samples, 2))


def slow_turns() -> SampleBlock:
    def turn() -> list[float]:
        time.sleep(0.02)
        return [100.0, 100.0]

    return turn


def steady(**each_us: float) -> dict[str, SampleBlock]:
    return {name.removeprefix("kernel"): replays(itertools.repeat(us)) for name, us in each_us.items()}


@pytest.mark.parametrize(
    ("each_us", "samples"),
    [
        ({"kernel": 100.0, "yardstick": 100.0}, 14),
        ({"kernel": 169.0, "yardstick": 100.0}, 14),
        ({"kernel": 171.0, "yardstick": 100.0}, 4),
        ({"kernel": 20.0, "yardstick": 2.0}, 14),
        ({"kernel": 171.0, "torch.matmul": 50.0, "yardstick": 400.0}, 14),
        ({"kernel": 900.0, "torch.matmul": 100.0}, 12),
        ({"kernel": 30_000.0}, 12),
    ],
)
def test_a_candidate_far_behind_its_yardstick_has_few_samples(each_us: dict[str, float], samples: int) -> None:
    taken = timed(steady(**each_us), SEARCH, lambda: None)
    assert {name: len(of) for name, of in taken.items()} == {name.removeprefix("kernel"): samples for name in each_us}
    assert all(set(of) == {us} for of, us in zip(taken.values(), each_us.values(), strict=True))


def test_a_candidate_that_is_slow_while_the_clock_rises_is_timed_to_the_end() -> None:
    blocks = {"": replays([500.0, *[100.0] * 6]), "yardstick": replays([110.0] * 7)}
    taken = timed(blocks, SEARCH, lambda: None)
    assert taken[""] == [500.0, 500.0, *[100.0] * 12]


def test_what_the_first_rounds_took_counts_for_the_budget() -> None:
    clocked = RaceOptions("sustained", 1, 0.05, "search")
    taken = timed({"": slow_turns(), "yardstick": slow_turns()}, clocked, lambda: None)
    assert len(taken[""]) == 4, "two turns of two contenders take 0.08 s at least"
