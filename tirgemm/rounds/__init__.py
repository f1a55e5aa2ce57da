"""Interleaved measurement: every contender takes its turn in every round, until there are samples enough.

Contenders share whatever the machine does meanwhile: clocks, temperature, neighbours. The order is drawn anew for every
round, so that none owes anything to what runs before it.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

MOST_SAMPLES = 2000
_PATIENCE = 10.0
_LEAST_PATIENCE_S = 2.0
_LEAST_SAMPLES = 3
_QUIET_S = 0.01
_TURN_S = 0.02

SampleBlock = Callable[[], list[float]]
Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class FixedRounds:
    """Stop after ``count`` samples of each, however long they take."""

    count: int

    def reached(self, count: int, elapsed_s: float) -> bool:
        del elapsed_s
        return count >= self.count


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When to stop: after ``samples`` of each and ``seconds``.

    Kernels so slow that this would take ten times ``seconds`` (at least 2 s) get fewer, but at least 3 each.
    """

    samples: int
    seconds: float

    def reached(self, count: int, elapsed_s: float) -> bool:
        if count >= self.samples and elapsed_s >= self.seconds:
            return True
        if count >= max(MOST_SAMPLES, self.samples):
            return True
        return count >= min(_LEAST_SAMPLES, self.samples) and elapsed_s > max(
            _LEAST_PATIENCE_S, _PATIENCE * self.seconds
        )


def settle(limit_s: float = 0.25) -> None:
    """Wait until no thread of this process spins any more.

    OpenBLAS's threads go on spinning for tens of milliseconds after a product, and would take half of a small machine
    from whoever runs next.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(_QUIET_S)
        if time.process_time() - before < _QUIET_S / 10:
            return


def turn(calls: Iterator[Callable[[], object]], block: SampleBlock) -> SampleBlock:
    """``block`` as one turn among contenders: settled, one call unmeasured, then samples for about 20 ms."""

    def run() -> list[float]:
        settle()
        next(calls)()
        samples = block()
        until = time.monotonic() + _TURN_S
        while time.monotonic() < until:
            samples += block()
        return samples

    return run


def warm_up(
    blocks: Collection[Callable[[], object]],
    seconds: float,
    alive: Callable[[], None] = lambda: None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Let contenders take turns of which nothing is kept, until so many seconds are over."""
    started = clock()
    for block in itertools.cycle(blocks):
        if clock() - started >= seconds:
            return
        block()
        alive()


def alternate(
    blocks: Mapping[str, Callable[[], list[Sample]]],
    enough: FixedRounds | StoppingRule,
    alive: Callable[[], None] = lambda: None,
    *,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[Sample]]:
    """Samples by contender. ``blocks`` each take one or more samples and return them; ``alive`` is called after each.

    The same ``seed`` draws the same orders.
    """
    order = list(blocks)
    draw = random.Random(seed)
    samples: dict[str, list[Sample]] = {name: [] for name in order}
    started = clock()
    while not enough.reached(min(len(taken) for taken in samples.values()), clock() - started):
        draw.shuffle(order)
        for name in order:
            samples[name] += blocks[name]()
            alive()
    return samples


def buffer_assignment(count: int, swap: bool) -> list[int]:
    """Which contender uses which of ``count`` sets of buffers: its own, or with ``swap`` the next one's."""
    return [(i + 1) % count if swap else i for i in range(count)]
