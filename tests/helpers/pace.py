"""The machine's pace at the moment: what else its host does slows it for seconds, by half or more."""

from __future__ import annotations

import random
import string
import time
import zlib

# What the work below takes on the processor that limits on seconds of processor time are meant for: 0.69 of what a loop
# takes in a Python 3.11 compiled without optimisations, 1.5 ms there, by 2026-11-30 side by side.
REFERENCE_S = 1.035e-3

_DRAWN = random.Random(1)
_WORDS = [bytes(_DRAWN.choices(string.ascii_lowercase.encode(), k=_DRAWN.randint(3, 9))) for _ in range(2000)]
_TEXT = b" ".join(_DRAWN.choices(_WORDS, k=12000))


def slowness() -> float:
    """How many times longer work takes here and now than on the processor of REFERENCE_S, which is never less than
    once.

    Another hyperthread of the same core, or another guest of the same host, makes a second of processor time worth
    less.
    """
    return max(1.0, min(reference_work() for _ in range(10)) / REFERENCE_S)


def reference_work() -> float:
    """Seconds that a fixed piece of work takes, whatever interpreter it is called from."""
    began = time.perf_counter()
    zlib.compress(_TEXT, 6)
    return time.perf_counter() - began
