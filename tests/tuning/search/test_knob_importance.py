"""Importance of knobs, on spaces whose times are made from the knobs, so that the answer is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tirgemm.config import Config, Value
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.search.knob_importance import MIN_CANDIDATES, SLOWEST, knob_importance


def _config(**knobs: Value) -> Config:
    return Config("sample", tuple(knobs.items()))


def _additive() -> dict[Config, float]:
    """The variance of the times' logarithm is 0.09 by ``tile``, 0.0225 by ``order``, and none by ``pad``; ``stages``
    has one value."""
    return {
        _config(pad=pad, tile=tile, order=order, stages=3): 20.0 * math.exp(0.6 * (tile == 64) + 0.3 * (order == "m"))
        for pad, tile, order in itertools.product(range(15), (32, 64), ("n", "m"))
    }


def test_shares_are_those_of_the_variance_that_each_knob_makes() -> None:
    importance = knob_importance(_additive())
    shares = {each.knob: each.share for each in importance.shares}
    assert list(shares) == ["tile", "order", "pad"]
    assert shares["tile"] == pytest.approx(0.8, abs=0.05)
    assert shares["order"] == pytest.approx(0.2, abs=0.05)
    assert shares["pad"] == pytest.approx(0.0, abs=0.01)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert importance.candidates == 60
    assert importance.explained > 0.9


def test_a_knob_that_counts_only_together_with_another_counts() -> None:
    times = {
        _config(pad=pad, warps=warps, swap=swap): 10.0 * (1 + (swap != (warps == 8)))
        for pad, warps, swap in itertools.product(range(15), (4, 8), (False, True))
    }
    shares = {each.knob: each.share for each in knob_importance(times).shares}
    assert shares["warps"] == pytest.approx(0.5, abs=0.1)
    assert shares["swap"] == pytest.approx(0.5, abs=0.1)


def test_one_hopeless_config_does_not_decide_what_is_important() -> None:
    times = _additive()
    worst = next(config for config in times if config["pad"] == 3)
    shares = {each.knob: each.share for each in knob_importance(times | {worst: 1e6}).shares}
    assert math.exp(0.9) < SLOWEST
    assert shares["tile"] > 0.6
    assert shares["pad"] < 0.2


def test_the_order_of_the_candidates_does_not_matter() -> None:
    times = _additive()
    assert knob_importance(times) == knob_importance(dict(reversed(times.items())))


def test_a_knob_that_some_configs_lack_is_no_fault() -> None:
    times = _additive()
    older = {config.with_(pad=99): us for config, us in times.items() if config["pad"] == 0}
    lacking = {Config("sample", config.knobs[:-1]): us for config, us in older.items()}
    assert {each.knob for each in knob_importance(times | lacking).shares} == {"tile", "order", "pad", "stages"}


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({_config(pad=pad): 1.0 + pad for pad in range(MIN_CANDIDATES - 1)}, f"it takes {MIN_CANDIDATES}"),
        ({_config(pad=pad): 1.0 for pad in range(60)}, "have one time"),
        (
            {_config(pad=pad): us for pad, us in enumerate(np.random.default_rng(1).uniform(1, 2, 60).tolist())},
            "it takes 20%",
        ),
    ],
    ids=["few", "equal", "noise"],
)
def test_what_says_nothing_is_refused(times: dict[Config, float], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        knob_importance(times)
