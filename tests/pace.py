"""Waiting until the machine is as fast as it can be: what else its host does slows it for seconds, by half or more."""

from __future__ import annotations

import time

_best = float("inf")


def wait_for_usual_pace(seconds: float = 5.0) -> None:
    """Return when a fixed piece of work takes about what it took at best in this process, or after ``seconds``.

    Nothing about what is then measured is changed: a machine that is always slow is not waited for.
    """
    global _best
    quick, until = 0, time.monotonic() + seconds
    while quick < 3 and time.monotonic() < until:
        taken = _work()
        _best = min(_best, taken)
        quick = quick + 1 if taken < 1.3 * _best else 0
        time.sleep(0.02)


def _work() -> float:
    began = time.perf_counter()
    table: dict[int, tuple[int, int]] = {}
    for number in range(20_000):
        table[number % 997] = (number, number * number // 7)
    return time.perf_counter() - began
