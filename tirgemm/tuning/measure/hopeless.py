"""Kernels so much slower than the best known one that to time them exactly would tell nothing more."""

from __future__ import annotations

from collections.abc import Mapping

from tirgemm.rounds import StoppingRule
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import YARDSTICK

# So many times the best, beyond what one launch may cost.
_TIMES, _LAUNCH_US = 1.5, 20.0


def is_hopeless(us: float, best_us: float) -> bool:
    """Whether a kernel that takes ``us`` microseconds a call, roughly, is no rival of one that takes ``best_us``."""
    return us > _TIMES * best_us + _LAUNCH_US


def stopping_rule(options: RaceOptions, each_us: Mapping[str, float]) -> StoppingRule:
    """When there are samples enough of contenders that take ``each_us`` microseconds a call, roughly, the kernel under
    the name "": those that the options ask for; one round where a candidate is hopeless beside its yardstick."""
    yardstick_us = each_us.get(YARDSTICK)
    if yardstick_us is not None and is_hopeless(each_us[""], yardstick_us):
        return StoppingRule(1, 0.0)
    return StoppingRule(options.min_samples, options.budget_s)
