"""Partition of a range of m into few ranges, each served by one config: a dynamic program over the sizes compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import is_valid
from tirgemm.gemm import Gemm, Range

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Loss:
    """How a config does at one size: ``ratio`` of its median time to the fastest's there, and ``shown``, the least
    ratio that the samples show with confidence. Neither is below 1."""

    ratio: float
    shown: float


# What a config is taken to lose at a size at which nobody timed it: more than any that is chosen for its speed.
UNKNOWN = Loss(2.0, 2.0)
# Of two sizes that are apart by more than this part of the smaller one the middle is looked at, too.
FAR = 8
# Kernels of a set at most, as many as are read (``tirgemm.artifact.manifest.MAX_KERNELS``): a certificate takes about
# a second for each.
MOST_KERNELS = 64
# Sums that differ by less are the same.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Segment:
    """The sizes from index ``first`` to ``last``, served by ``config``; ``loss`` is the largest of its ratios there."""

    first: int
    last: int
    config: Config
    loss: float


def servers(offered: Iterable[Config], losses: Iterable[Mapping[Config, Loss]]) -> list[Config]:
    """What may serve a part of a range: what is ``offered``, and the fastest at each of the sizes whose ``losses`` are
    given, which where little was tried is a default that is better than all that is offered from elsewhere."""
    fastest = [min(at_size, key=lambda config: at_size[config].ratio) for at_size in losses if at_size]
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
    configs = list(configs)
    if not any(config in losses[-1] for config in configs):
        raise InvalidRequest(f"none of {len(configs)} configs serves the last of {len(losses)} sizes")
    costs = _Costs(losses, configs, tolerance, refused)
    sizes, most = len(losses), min(most, len(losses))
    # By the end of the sizes served and the count of segments that serve them: what they lose beyond the tolerance,
    # squared and summed over the sizes, so that one bad size excuses no other; then the logarithm of the losses'
    # product; and where the last segment begins.
    excess, total = np.full((2, sizes + 1, most + 1), math.inf)
    begins = np.zeros((sizes + 1, most + 1), np.intp)
    excess[0, 0] = total[0, 0] = 0.0
    chosen = np.zeros((sizes, sizes), np.intp)
    counts = np.arange(most)
    for last in range(sizes):
        (own_excess, own_total), chosen[: last + 1, last] = costs.best(last)
        sums = excess[: last + 1, :-1] + own_excess[:, None], total[: last + 1, :-1] + own_total[:, None]
        begins[last + 1, 1:] = _least(*sums, axis=0)
        excess[last + 1, 1:], total[last + 1, 1:] = (each[begins[last + 1, 1:], counts] for each in sums)
    if not np.isfinite(excess[-1]).any():
        raise InvalidRequest(f"none of {len(configs)} configs serves the last of {sizes} sizes")
    count = int(np.flatnonzero(excess[-1] <= excess[-1].min() + _SAME)[0])
    segments: list[Segment] = []
    end = sizes
    for served in range(count, 0, -1):
        first = int(begins[end, served])
        place = int(chosen[first, end - 1])
        segments.append(Segment(first, end - 1, configs[place], max(1.0, *costs.ratios[first:end, place].tolist())))
        end = first
    return segments[::-1]


class _Costs:
    """What segments lose, by their config. ``ratios``: of each size and config."""

    def __init__(
        self,
        losses: Sequence[Mapping[Config, Loss]],
        configs: Sequence[Config],
        tolerance: float,
        refused: Collection[tuple[int, int, Config]],
    ) -> None:
        pairs = [[at_size.get(config, UNKNOWN) for config in configs] for at_size in losses]
        self.ratios = np.array([[loss.ratio for loss in row] for row in pairs])
        shown = np.array([[loss.shown for loss in row] for row in pairs])
        self._timed = np.array([[config in at_size for config in configs] for at_size in losses])
        self._excess = np.maximum(0.0, shown - 1.0 - tolerance) ** 2
        self._total = np.log(self.ratios)
        self._refused: dict[int, list[tuple[int, int]]] = {}
        places = {config: place for place, config in enumerate(configs)}
        for first, last, config in refused:
            if config in places:
                self._refused.setdefault(last, []).append((first, places[config]))

    def best(self, last: int) -> tuple[Floats, npt.NDArray[np.intp]]:
        """Of the segments that end with size ``last``, by the size that they begin with: excess and total of the best
        config, and its place; infinite where none may serve."""
        excess, total = (np.cumsum(each[last::-1], axis=0)[::-1] for each in (self._excess, self._total))
        excess[:, ~self._timed[last]] = math.inf
        for first, place in self._refused.get(last, ()):
            excess[first, place] = math.inf
        best = _least(excess, total, axis=1)
        rows = np.arange(last + 1)
        return np.array([excess[rows, best], total[rows, best]]), best


def _least(excess: Floats, total: Floats, axis: int) -> npt.NDArray[np.intp]:
    """Places of the least excess along ``axis``, among equals of the least total."""
    among = excess <= excess.min(axis=axis, keepdims=True) + _SAME
    places: npt.NDArray[np.intp] = np.argmin(np.where(among, total, math.inf), axis=axis)
    return places


def valid_segments(
    problems: Sequence[Gemm],
    losses: Sequence[Mapping[Config, Loss]],
    configs: Collection[Config],
    device: Device,
    *,
    tolerance: float,
    most: int = MOST_KERNELS,
    refused: Collection[tuple[int, int, Config]] = (),
) -> list[Segment]:
    """``partition`` of the sizes of ``problems``, by rising m, into at most so many segments.

    A kernel must be valid for the largest m that it serves; smaller ones it takes whatever its tiles are. Raises
    InvalidRequest as ``partition``.
    """
    invalid: set[tuple[int, int, Config]] = set()
    while True:
        segments = partition(losses, configs, tolerance=tolerance, most=most, refused={*refused, *invalid})
        wrong = {s.config for s in segments if not is_valid(problems[s.last], s.config, device)}
        if not wrong:
            return segments
        for last, gemm in enumerate(problems):
            of_last = [config for config in wrong if not is_valid(gemm, config, device)]
            invalid |= {(first, last, config) for config in of_last for first in range(last + 1)}


def midpoints(sizes: Sequence[int], segments: Sequence[Segment]) -> dict[int, tuple[Config, Config]]:
    """The sizes half way between two segments, with the configs below and above, where they are far apart."""
    return {
        (low + high) // 2: (below.config, above.config)
        for below, above in itertools.pairwise(segments)
        for low, high in [sizes[below.last : below.last + 2]]
        if high - low > max(1, low // FAR)
    }


def borders(
    m: Range,
    sizes: Sequence[int],
    segments: Sequence[Segment],
    times_at: Callable[[int], Mapping[Config, float]],
) -> list[Range]:
    """The range of m of each segment. Between two sizes the border is at the smaller one, or half way where the kernel
    below is no slower there than the one above, by the times at that size, which is asked for where they are far
    apart."""
    ranges, low = [], m.low
    half_way = midpoints(sizes, segments)
    for below, above in itertools.pairwise(segments):
        high, middle = sizes[below.last], (sizes[below.last] + sizes[below.last + 1]) // 2
        times = times_at(middle) if middle in half_way else {}
        if below.config in times and above.config in times and times[below.config] <= times[above.config]:
            high = middle
        ranges.append(Range(low, high))
        low = high + 1
    return [*ranges, Range(low, m.high)]
