"""Confidence intervals of medians and of their ratios, by bootstrap: pure functions over samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tirgemm.errors import InvalidRequest

CONFIDENCE = 0.95
RESAMPLES = 2000

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the two-sided 95 % interval around it."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def median_interval(samples: Sequence[float], *, seed: int = 0) -> Interval:
    """The median of ``samples``. The same samples and seed give the same interval. Raises InvalidRequest for none."""
    return _interval(float(np.median(_array(samples))), _medians(tuple(samples), seed))


def ratio_interval(theirs: Sequence[float], ours: Sequence[float], *, paired: bool = False, seed: int = 0) -> Interval:
    """median(theirs) / median(ours). ``paired``: both are of one run in alternating blocks, see ``median_ratios``."""
    value = float(np.median(_array(theirs)) / np.median(_array(ours)))
    return _interval(value, median_ratios(theirs, ours, paired=paired, seed=seed))


def median_ratios(theirs: Sequence[float], ours: Sequence[float], *, paired: bool, seed: int = 0) -> Samples:
    """Resampled ratios of the medians.

    ``paired`` sets of one length were measured in alternating blocks and are resampled in pairs, so that what both
    suffered (clocks, heat) cancels.
    """
    a, b = _array(theirs), _array(ours)
    if paired and len(a) == len(b):
        return _medians(tuple(theirs), seed) / _medians(tuple(ours), seed)
    random = np.random.default_rng(seed)
    rows, columns = (random.integers(0, len(each), (RESAMPLES, len(each))) for each in (a, b))
    return _resampled_medians(a, rows) / _resampled_medians(b, columns)


@lru_cache(maxsize=256)
def _medians(samples: tuple[float, ...], seed: int) -> Samples:
    """Resampled medians, only to be read: of a race the fastest is compared with each of the others."""
    values = _array(samples)
    rows = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    medians = _resampled_medians(values, rows)
    medians.flags.writeable = False
    return medians


def _resampled_medians(values: Samples, rows: npt.NDArray[np.int64]) -> Samples:
    """``np.median(values[rows], axis=1)`` by the ranks of the values: half the time, for small integers are faster to
    gather and to part than floats."""
    order = np.argsort(values)
    ranks = np.empty(len(values), np.min_scalar_type(len(values)))
    ranks[order] = np.arange(len(values))
    length = rows.shape[1]
    middle = [(length - 1) // 2, length // 2]
    return np.asarray(values[order][np.partition(ranks[rows], middle, axis=1)[:, middle]].mean(axis=1))


def _array(samples: Sequence[float]) -> Samples:
    if not len(samples):
        raise InvalidRequest("an interval needs samples; there are none")
    return np.asarray(samples, dtype=np.float64)


def _interval(value: float, resampled: Samples) -> Interval:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))
