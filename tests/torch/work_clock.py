"""``WorkClock``: a clock that goes on by what work is said to take, so that no race depends on the machine."""

from __future__ import annotations

# What passes between two looks at the clock where no work is done.
TICK_S = 1e-6


class WorkClock:
    """Seconds, as ``time.perf_counter`` answers them. ``now`` is set by whoever works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now
