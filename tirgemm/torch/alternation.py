"""Interleaved timing of PyTorch calls, and capture of calls in CUDA graphs."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tirgemm.rounds import FixedRounds, alternate

_WARM_UP_CALLS = 3
# That of two equals one is found to be faster.
_CHANCE = 0.02


@dataclass(frozen=True, slots=True)
class Turns:
    """How calls take turns: so many each, of about so many ``seconds`` by the ``clock``, which answers in seconds."""

    count: int = 9
    seconds: float = 0.003
    clock: Callable[[], float] = time.perf_counter


def alternating(
    contenders: Mapping[str, Callable[[], Any]],
    turns: Turns,
    synchronise: Callable[[], None],
    prepare: Callable[[str], None] | None = None,
) -> dict[str, list[float]]:
    """Milliseconds a call, by contender, of each of its ``turns``, in an order drawn anew for every round.

    A turn has as many calls of each, so that what a turn costs beside them is the same. ``prepare`` is given a
    contender's name before each of its turns, untimed. No garbage is collected meanwhile.
    """

    def turn(name: str, count: int) -> float:
        if prepare is not None:
            prepare(name)
        return _turn(contenders[name], count, synchronise, turns.clock)

    with _uncollected():
        for name in contenders:
            turn(name, _WARM_UP_CALLS)
        count = max(1, math.ceil(turns.seconds / min(turn(name, 1) for name in contenders)))
        blocks = {name: (lambda name=name: [1e3 * turn(name, count) / count]) for name in contenders}
        samples = alternate(blocks, FixedRounds(1 + turns.count))
        return {name: taken[1:] for name, taken in samples.items()}  # the first was to warm up


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Our time over theirs, turn by turn, so that what both drift by is not in it: the median, and what all turns but
    a few are above and below: one of nine, eleven of 36. Of equals so many are below 1 in one race of 50 at most; where
    a second race looks again at what the first did not tell, in one of 29."""

    median: float
    low: float
    high: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> PairedRatio:
    """The ratio of two contenders that took turns, two at least."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    few = _few(len(ratios))
    return PairedRatio(statistics.median(ratios), ratios[few], ratios[-1 - few])


def _few(turns: int) -> int:
    """The most turns, one at least, of which no more are below 1 with a probability of 2 % where each is with one half:
    a sign test."""
    few, within = 0, 0.0
    while (within := within + math.comb(turns, few) / 2**turns) <= _CHANCE:
        few += 1
    return max(1, few - 1)


def captured(call: Callable[[], Any], pool: Any = None) -> tuple[Any, Any]:
    """A CUDA graph of ``call``, and the tensor that its replays write. Graphs of one ``pool`` have the memory between
    them: what one has written is gone when another is replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # What other threads do is no part of it.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        output = call()
    graph.replay()
    return graph, output


def ended() -> None:
    """A CPU's calls have ended when they return."""


@contextmanager
def _uncollected() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _turn(call: Callable[[], Any], count: int, synchronise: Callable[[], None], clock: Callable[[], float]) -> float:
    """Seconds of so many calls."""
    synchronise()
    began = clock()
    for _ in range(count):
        call()
    synchronise()
    return clock() - began
