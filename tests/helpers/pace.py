"""The machine's pace at the moment: what else its host does slows it for seconds, by half or more."""

from __future__ import annotations

import time

# What the work below takes on the processor that limits on seconds of processor time are meant for.
REFERENCE_S = 1.5e-3


def slowness() -> float:
    """How many times longer work takes here and now than on the processor of REFERENCE_S, which is never less than
    once.

    Another hyperthread of the same core, or another guest of the same host, makes a second of processor time worth
    less.
    """
    return max(1.0, min(reference_work() for _ in range(10)) / REFERENCE_S)


def reference_work() -> float:
    """Seconds that a fixed piece of work takes."""
    began = time.perf_counter()
    table: dict[int, tuple[int, int]] = {}
    for number in range(20_000):
        table[number % 997] = (number, number * number // 7)
    return time.perf_counter() - began
