"""Events of a search as a tuner tells them, made up: for jobs whose pages are tested."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from tirgemm.events import (
    BatchProposed,
    BuildsCounted,
    CandidateRecorded,
    Event,
    FinalistsRaced,
    Phase,
    PhaseEntered,
    RaceEntry,
    SearchStarted,
    Standing,
)
from tirgemm.status import Status

FAMILIES = ("simt", "mma")
DEFAULT_US = 20.0


def config(number: int) -> str:
    """The text of the config of a candidate."""
    return f"{FAMILIES[number % 2]}(block_m={16 * (1 + number % 8)}, block_n=64, stages={1 + number % 4})"


def digest(number: int) -> str:
    """The hash of the config of a candidate."""
    return hashlib.sha256(f"{number} {config(number)}".encode()).hexdigest()[:16]


def search_events(count: int = 24, *, trials: int = 64, first: int = 0) -> Iterator[Event]:
    """A search of two families: its beginning, batches, builds, and ``count`` candidates from the ``first`` on, every
    seventh of which does not build, and every eleventh of which is wrong."""
    yield SearchStarted(
        families=FAMILIES, space={"simt": 12288, "mma": 7680}, budget={"trials": trials, "seconds": 60}, recorded=0
    )
    yield BatchProposed(
        proposed=8,
        trials=8,
        pruned={"registers": 412, "tile_shape": 96},
        sentences={"tile_shape": "block_m=16 is less than the 32 rows of a warp"},
        expected_gain=0.12,
    )
    yield BuildsCounted(queued=5, building=2, built=1)
    yield PhaseEntered(phase=Phase.MEASURING, seconds_left=50.0)
    yield from candidates(count, trials=trials, first=first)


def candidates(count: int, *, trials: int = 64, first: int = 0) -> Iterator[CandidateRecorded]:
    """``count`` candidates, each of whose standing counts those before it."""
    noise = random.Random(7)
    best, best_at, measured = DEFAULT_US, 0, 0
    for number in range(first + count):
        status = Status.BUILD_FAILED if number % 7 == 6 else Status.WRONG if number % 11 == 10 else Status.MEASURED
        us = round(60 / (1 + 0.12 * number) * noise.uniform(0.8, 1.6), 3) if status is Status.MEASURED else None
        predicted = round(60 / (1 + 0.12 * number) * noise.uniform(0.9, 1.3), 3)
        measured += us is not None
        if us is not None and us < best:
            best, best_at = us, number
        if number < first:
            continue
        yield CandidateRecorded(
            config=config(number),
            digest=digest(number),
            status=status,
            us=us,
            message={Status.BUILD_FAILED: "ptxas: too much shared memory", Status.WRONG: "test exact failed"}.get(
                status, ""
            ),
            trials=min(trials, 8 * (1 + number // 8)),
            of=trials,
            predicted_us=predicted,
            clock_mhz=1755.0 - number if us else None,
            power_w=500.0 + 2 * number if us else None,
            seconds_left=round(50 - number / 4, 1),
            standing=Standing(number + 1, measured, best, config(best_at), DEFAULT_US),
        )


def race() -> FinalistsRaced:
    """A race of the default and two others, one of which failed."""
    return FinalistsRaced(
        entries=(
            RaceEntry(config(0), digest(0), 20.1, 19.9, 20.4, 50, 1.0, 1.0),
            RaceEntry(config(5), digest(5), 8.2, 8.1, 8.4, 50, 2.451, 2.43),
            RaceEntry(config(9), digest(9), message="the measuring process died: signal 11 (SIGSEGV)"),
        )
    )
