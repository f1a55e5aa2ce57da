"""Selection among the finalists: pure functions over their sample sets.

The finalists were measured again, interleaved with the default. One that is to replace the default must be faster with
confidence: the lower bound of its ratio to the default is above 1. Among those that are, a tie goes to the simpler.
Where a kernel is served already it is one of the finalists, and stays unless the choice is faster than it with
confidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.intervals import CONFIDENCE, median_ratios
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.search.neighbourhood import group

DEFAULT = "default"
# A gap that the samples cannot tell from none is a tie only up to here: noise must not excuse a slow choice.
TIE_AT_MOST = 1.03
# What cuts the work otherwise than more than half of the finalists is one of them, up to so many times the fastest.
NEAR = 1.1


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen finalist: its ``index``, and the sentence that a person reads. ``lead`` is its ratio to what it
    replaces, above 1 where it is faster: the served finalist where there is one, else the default; 1 where that one
    stays."""

    index: int
    reason: str
    lead: float


ONLY_THE_DEFAULT = Choice(0, "the default is the only finalist", 1.0)
THE_ONLY = Choice(0, "the only finalist; the default is out", 1.0)


def finalists_of(times: Mapping[Config, float], most: int) -> list[Config]:
    """At most ``most`` of what was measured, which is given with the fastest first and stays in this order: the fastest
    ones, but of those that cut the work alike at most half, rounded up, where others are ``NEAR``.

    They differ in little, and the GPU's clock, which falls in a race and hardly in a search, slows all of them alike:
    then another cut may be the faster one.
    """
    taken: list[Config] = []
    limit = NEAR * min(times.values(), default=0.0)
    for config, us in times.items():
        alike = sum(group(config) == group(other) for other in taken)
        if alike < (most + 1) // 2 and us <= limit:
            taken.append(config)
    taken = taken[:most]
    others = [config for config in times if config not in taken][: most - len(taken)]
    return sorted(taken + others, key=lambda config: times[config])


def choose(
    sets: Sequence[SampleSet],
    ranks: Sequence[tuple[int, ...]],
    *,
    default: int | None,
    served: int | None = None,
) -> Choice:
    """The finalist to serve.

    ``default`` is the default's index; beside the others' samples stand its own. None where it failed: the fastest of
    the rest is chosen then. ``ranks`` order the configs, smaller is simpler. ``served`` is the index of the finalist
    that is served already. Raises InvalidRequest for no finalists, different counts, or a set without samples or the
    default's beside them.
    """
    choice = _best(sets, ranks, default)
    if served is None or served == choice.index:
        return choice
    theirs, ours = sets[served], sets[choice.index]
    lead, low = theirs.median_us / ours.median_us, ratio_low(theirs.samples_us, ours.samples_us)
    if low > 1.0:
        return replace(choice, lead=lead)
    words = f"the kernel that is served stays: the best of the others is {lead:.3f} times as fast, but only at least"
    return Choice(served, f"{words} {low:.3f} with {CONFIDENCE:.0%} confidence", 1.0)


def _best(sets: Sequence[SampleSet], ranks: Sequence[tuple[int, ...]], default: int | None) -> Choice:
    """The choice where nothing is served yet."""
    _check(sets, ranks, default)
    ratios = [ratio_to_default(s) for s in sets]
    faster = [i for i in range(len(sets)) if i != default and (default is None or ratios[i][1] > 1.0)]
    if default is not None and not faster:
        return Choice(default, _default_stays(sets, ratios, default), 1.0)
    best = min(faster, key=lambda i: (sets[i].median_us, ranks[i]))
    tied = [i for i in faster if i == best or _tie(sets[best], sets[i])]
    index = min(tied, key=lambda i: (ranks[i], sets[i].median_us))
    ratio, low = ratios[index]
    words = f"{ratio:.3f} times as fast as the default, at least {low:.3f} with {CONFIDENCE:.0%} confidence"
    if not sets[index].baselines.get(DEFAULT):
        words = "the fastest of the finalists"
    if default is None:
        words = f"{words}; the default is out"
    if index != best:
        gap = sets[index].median_us / sets[best].median_us - 1
        words = f"{words}; simpler than the fastest, which is ahead by {gap:.1%}, within the noise"
    return Choice(index, words, ratio)


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
    return _ratio_low(tuple(theirs), tuple(ours), seed)


@lru_cache(maxsize=512)
def _ratio_low(theirs: tuple[float, ...], ours: tuple[float, ...], seed: int) -> float:
    """The same races cut a range of m again and again."""
    return float(np.quantile(median_ratios(theirs, ours, paired=True, seed=seed), 1.0 - CONFIDENCE))


def _tie(best: SampleSet, other: SampleSet) -> bool:
    """Whether ``best`` cannot be said to be faster than ``other``."""
    near = other.median_us <= best.median_us * TIE_AT_MOST
    return near and ratio_low(other.samples_us, best.samples_us) <= 1.0


def _default_stays(sets: Sequence[SampleSet], ratios: Sequence[tuple[float, float]], default: int) -> str:
    others = [i for i in range(len(sets)) if i != default]
    if not others:
        return ONLY_THE_DEFAULT.reason
    ratio, low = max((ratios[i] for i in others), key=lambda pair: pair[1])
    return (
        f"the default stays: the best of the others is {ratio:.3f} times as fast, "
        f"but only at least {low:.3f} with {CONFIDENCE:.0%} confidence"
    )


def _check(sets: Sequence[SampleSet], ranks: Sequence[tuple[int, ...]], default: int | None) -> None:
    if not sets or len(sets) != len(ranks):
        raise InvalidRequest(f"selection needs finalists and a rank for each, not {len(sets)} and {len(ranks)}")
    if any(not s.samples_us for s in sets):
        raise InvalidRequest("selection was given a finalist without samples; measure it first")
    lacking = [i for i, s in enumerate(sets) if default not in (None, i) and not s.baselines.get(DEFAULT)]
    if lacking:
        raise InvalidRequest(f"finalists {lacking} have no samples of the default beside theirs; race them with it")
