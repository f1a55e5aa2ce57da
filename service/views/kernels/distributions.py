"""Distributions of samples: their quartiles and range, and the spread of the ratio of two sets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Samples in five numbers, in their own unit, and how many they are."""

    least: float
    low: float
    median: float
    high: float
    most: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quartiles:
        """Those of at least one sample."""
        least, low, median, high, most = (float(each) for each in np.quantile(samples, (0, 0.25, 0.5, 0.75, 1)))
        return cls(least, low, median, high, most, len(samples))


@dataclass(frozen=True, slots=True)
class RatioSpread:
    """The time of the baseline ``name`` over the kernel's, above 1 where the kernel is faster, and between which values
    the middle half of the samples' ratios lies; None where no samples are stored."""

    name: str
    ratio: float
    low: float | None = None
    high: float | None = None


def ratio_spread(name: str, ratio: float, theirs: Sequence[float], ours: Sequence[float]) -> RatioSpread:
    """The spread around a ``ratio`` of medians: of sets of one length, which ran in turns, pair by pair, else of ours
    against the median of theirs."""
    if not theirs or not ours:
        return RatioSpread(name, ratio)
    times = np.asarray(theirs) if len(theirs) == len(ours) else np.median(theirs)
    low, high = np.quantile(times / np.asarray(ours), (0.25, 0.75))
    return RatioSpread(name, ratio, float(low), float(high))
