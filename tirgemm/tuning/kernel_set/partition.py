"""Partition of a range of m into few ranges, each served by one config: a dynamic program over the sizes compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Range


@dataclass(frozen=True, slots=True)
class Loss:
    """How a config does at one size: ``ratio`` of its median time to the fastest's there, and ``shown``, the least
    ratio that the samples show with confidence. Neither is below 1."""

    ratio: float
    shown: float


# What a config is taken to lose at a size at which nobody timed it: more than any that is chosen for its speed.
UNKNOWN = Loss(2.0, 2.0)


# Sums of squares that differ by less are the same.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Segment:
    """The sizes from index ``first`` to ``last``, served by ``config``; ``loss`` is the largest of its ratios there."""

    first: int
    last: int
    config: Config
    loss: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """Segments that serve the sizes so far. Plans compare by what they lose beyond the tolerance, squared and summed
    over the sizes, so that one bad size excuses no other; then by the losses' product."""

    excess: float
    total: float
    segments: tuple[Segment, ...]

    @property
    def order(self) -> tuple[float, float]:
        return self.excess, self.total


def servers(offered: Iterable[Config], losses: Iterable[Mapping[Config, Loss]]) -> list[Config]:
    """What may serve a part of a range: what is ``offered``, and the fastest at each of the sizes whose ``losses`` are
    given, which where little was tried is a default that is better than all that is offered from elsewhere."""
    fastest = [min(at_size, key=lambda config: at_size[config].ratio) for at_size in losses]
    return list(dict.fromkeys([*offered, *fastest]))


def partition(
    losses: Sequence[Mapping[Config, Loss]],
    configs: Collection[Config],
    *,
    tolerance: float,
    most: int,
    refused: Collection[tuple[int, int, Config]] = (),
) -> list[Segment]:
    """The fewest segments of which none is shown to lose more than ``tolerance`` at any size; of as few those that lose
    least.

    ``losses`` has, size by size, those of what was timed there. One of ``configs`` may serve a segment where it was
    timed at the largest of its sizes, which shows that it can be built for that; ``refused`` are segments that it may
    not serve all the same. Where ``most`` segments do not keep within the tolerance, those that are least beyond it, by
    the sum of squares. Raises InvalidRequest where there are no sizes, or none of the configs serves the last one.
    """
    if not losses:
        raise InvalidRequest("nothing was timed at any size")
    plans: list[dict[int, _Plan]] = [{0: _Plan(0.0, 0.0, ())}]
    for last in range(len(losses)):
        ended: dict[int, _Plan] = {}
        for config in configs:
            if config not in losses[last]:
                continue
            excess, ratio, total = 0.0, 1.0, 0.0
            for first in range(last, -1, -1):
                loss = losses[first].get(config, UNKNOWN)
                excess += max(0.0, loss.shown - 1.0 - tolerance) ** 2
                ratio, total = max(ratio, loss.ratio), total + math.log(loss.ratio)
                if (first, last, config) in refused:
                    continue
                segment = Segment(first, last, config, ratio)
                for count, before in plans[first].items():
                    plan = _Plan(before.excess + excess, before.total + total, (*before.segments, segment))
                    known = ended.get(count + 1)
                    if count < most and (known is None or plan.order < known.order):
                        ended[count + 1] = plan
        plans.append(ended)
    offered = plans[-1]
    if not offered:
        raise InvalidRequest(f"none of {len(configs)} configs serves the last of {len(losses)} sizes")
    least = min(plan.excess for plan in offered.values())
    return list(offered[min(count for count, plan in offered.items() if plan.excess <= least + _SAME)].segments)


def middles(sizes: Sequence[int], segments: Sequence[Segment]) -> dict[int, tuple[Config, Config]]:
    """The sizes half way between two segments, with the configs below and above."""
    return {
        middle: (below.config, above.config)
        for below, above in itertools.pairwise(segments)
        if (middle := (sizes[below.last] + sizes[below.last + 1]) // 2) > sizes[below.last]
    }


def borders(
    m: Range,
    sizes: Sequence[int],
    segments: Sequence[Segment],
    times_at: Callable[[int], Mapping[Config, float]],
) -> list[Range]:
    """The range of m of each segment. Between two sizes the border is at the smaller one, or half way where the kernel
    below is no slower there than the one above, by the times at that size."""
    ranges, low = [], m.low
    half_way = middles(sizes, segments)
    for below, above in itertools.pairwise(segments):
        high, middle = sizes[below.last], (sizes[below.last] + sizes[below.last + 1]) // 2
        times = times_at(middle) if middle in half_way else {}
        if below.config in times and above.config in times and times[below.config] <= times[above.config]:
            high = middle
        ranges.append(Range(low, high))
        low = high + 1
    return [*ranges, Range(low, m.high)]
