"""Early stopping of measurements: a kernel much slower than the best known one gets fewer samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from tirgemm.rounds import FixedRounds, SampleBlock, StoppingRule, alternate
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import YARDSTICK

# So many times the best, beyond what one launch may cost.
_TIMES, _LAUNCH_US = 1.5, 20.0
# Samples of each by which a candidate is found hopeless: more than a round has, since the clocks of a GPU that was
# idle rise during the first.
_FIRST = FixedRounds(3)


def is_hopeless(us: float, best_us: float) -> bool:
    """Whether a kernel that takes ``us`` microseconds a call, roughly, is no rival of one that takes ``best_us``."""
    return us > _TIMES * best_us + _LAUNCH_US


def timed(blocks: Mapping[str, SampleBlock], options: RaceOptions, alive: Callable[[], None]) -> dict[str, list[float]]:
    """Samples by contender, the kernel's under the name "": as many as the options ask for, or the first few where a
    candidate is hopeless beside its yardstick in all of them."""
    rule = StoppingRule(options.min_samples, options.budget_s)
    if YARDSTICK not in blocks:
        return alternate(blocks, rule, alive, seed=options.seed)
    began = time.monotonic()
    first = alternate(blocks, _FIRST, alive, seed=options.seed)
    if is_hopeless(min(first[""]), statistics.median(first[YARDSTICK])):
        return first
    left = StoppingRule(options.min_samples - _FIRST.count, options.budget_s - (time.monotonic() - began))
    rest = alternate(blocks, left, alive, seed=options.seed + 1)
    return {name: [*first[name], *samples] for name, samples in rest.items()}
