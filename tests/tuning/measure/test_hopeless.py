"""When a search's candidate is timed no further: it is far slower than what it runs beside."""

from __future__ import annotations

import pytest

from tirgemm.rounds import StoppingRule
from tirgemm.tuning.measure.hopeless import stopping_rule
from tirgemm.tuning.measure.requests import RaceOptions

SEARCH = RaceOptions("sustained", 5, 0.05, "search")
WHOLE, ONE_ROUND = StoppingRule(5, 0.05), StoppingRule(1, 0.0)


@pytest.mark.parametrize(
    ("each_us", "rule"),
    [
        ({"": 100.0, "yardstick": 100.0}, WHOLE),
        ({"": 169.0, "yardstick": 100.0}, WHOLE),
        ({"": 171.0, "yardstick": 100.0}, ONE_ROUND),
        ({"": 20.0, "yardstick": 2.0}, WHOLE),
        ({"": 171.0, "torch.matmul": 50.0, "yardstick": 400.0}, WHOLE),
        ({"": 900.0, "torch.matmul": 100.0}, WHOLE),
        ({"": 30_000.0}, WHOLE),
    ],
)
def test_a_candidate_far_behind_its_yardstick_has_one_round(each_us: dict[str, float], rule: StoppingRule) -> None:
    assert stopping_rule(SEARCH, each_us) == rule


def test_contenders_of_a_race_are_timed_to_the_end() -> None:
    race = RaceOptions("sustained", 50, 1.0, "report")
    assert stopping_rule(race, {"": 900.0, "torch.matmul": 100.0}) == StoppingRule(50, 1.0)
