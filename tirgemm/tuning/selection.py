"""Which of the finalists is served: pure functions over their sample sets.

The finalists were measured again, interleaved with the default. One that is to replace the default must be faster with
confidence: the lower bound of its ratio to the default is above 1. Among those that are, a tie goes to the simpler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tirgemm.errors import InvalidRequest
from tirgemm.tuning.records import SampleSet

DEFAULT = "default"
CONFIDENCE = 0.95
RESAMPLES = 2000
# A gap that the samples cannot tell from none is a tie only up to here: noise must not excuse a slow choice.
TIE_AT_MOST = 1.03

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen finalist: its ``index``, its ratio to the default (above 1 is faster) and the ratio's lower bound.

    ``reason`` is the sentence that a person reads. Both ratios are 1 where the default itself was chosen.
    """

    index: int
    reason: str
    ratio: float
    ratio_low: float


def choose(sets: Sequence[SampleSet], ranks: Sequence[tuple[int, ...]], *, seed: int = 0) -> Choice:
    """The finalist to serve.

    The default is the one set that has no samples named ``default`` beside its own; where it is missing (it failed
    its certificate) the fastest of the rest is chosen. ``ranks`` order the configs, smaller is simpler. Raises
    InvalidRequest for no finalists, different counts, two defaults, or a set without samples.
    """
    default = _check(sets, ranks)
    ratios = [ratio_to_default(s, seed=seed) for s in sets]
    faster = [i for i in range(len(sets)) if i != default and (default is None or ratios[i][1] > 1.0)]
    if default is not None and not faster:
        return Choice(default, _default_stays(sets, ratios, default), 1.0, 1.0)
    best = min(faster, key=lambda i: (sets[i].median_us, ranks[i]))
    tied = [i for i in faster if i == best or _tie(sets[best], sets[i], seed)]
    index = min(tied, key=lambda i: (ranks[i], sets[i].median_us))
    ratio, low = ratios[index]
    words = f"{ratio:.3f} times as fast as the default, at least {low:.3f} with {CONFIDENCE:.0%} confidence"
    if default is None:
        words = f"{words}; the default is out"
    if index != best:
        gap = sets[index].median_us / sets[best].median_us - 1
        words = f"{words}; simpler than the fastest, which is ahead by {gap:.1%}, within the noise"
    return Choice(index, words, ratio, low)


def ratio_to_default(samples: SampleSet, *, seed: int = 0) -> tuple[float, float]:
    """Default's median time over ours and its lower confidence bound; 1 and 1 for the default itself."""
    beside = samples.baselines.get(DEFAULT)
    if not beside:
        return 1.0, 1.0
    return float(np.median(beside) / samples.median_us), ratio_low(beside, samples.samples_us, seed=seed)


def ratio_low(theirs: Sequence[float], ours: Sequence[float], *, seed: int = 0) -> float:
    """The lower 95 % bound of median(theirs) / median(ours), one-sided, by bootstrap.

    Sets of one length were measured in alternating blocks and are resampled in pairs, so that what both suffered
    (clocks, heat) cancels. The same samples and seed give the same bound.
    """
    a, b = np.asarray(theirs, dtype=np.float64), np.asarray(ours, dtype=np.float64)
    random = np.random.default_rng(seed)
    rows = random.integers(0, len(a), (RESAMPLES, len(a)))
    columns = rows if len(a) == len(b) else random.integers(0, len(b), (RESAMPLES, len(b)))
    ratios = np.median(a[rows], axis=1) / np.median(b[columns], axis=1)
    return float(np.quantile(ratios, 1.0 - CONFIDENCE))


def _tie(best: SampleSet, other: SampleSet, seed: int) -> bool:
    """Whether ``best`` cannot be said to be faster than ``other``."""
    if other.median_us > best.median_us * TIE_AT_MOST:
        return False
    return ratio_low(other.samples_us, best.samples_us, seed=seed) <= 1.0


def _default_stays(sets: Sequence[SampleSet], ratios: Sequence[tuple[float, float]], default: int) -> str:
    others = [i for i in range(len(sets)) if i != default]
    if not others:
        return "the default is the only finalist"
    ratio, low = max((ratios[i] for i in others), key=lambda found: found[1])
    return (
        f"the default stays: the best of the others is {ratio:.3f} times as fast, "
        f"but only at least {low:.3f} with {CONFIDENCE:.0%} confidence"
    )


def _check(sets: Sequence[SampleSet], ranks: Sequence[tuple[int, ...]]) -> int | None:
    """The index of the default, or None where it is not among the finalists."""
    if not sets or len(sets) != len(ranks):
        raise InvalidRequest(f"selection needs finalists and a rank for each, not {len(sets)} and {len(ranks)}")
    if any(not s.samples_us for s in sets):
        raise InvalidRequest("selection was given a finalist without samples; measure it first")
    defaults = [i for i, s in enumerate(sets) if not s.baselines.get(DEFAULT)]
    if len(defaults) > 1:
        raise InvalidRequest(f"finalists {defaults} have no samples of the default beside theirs; one may: the default")
    return defaults[0] if defaults else None
