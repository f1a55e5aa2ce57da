"""``Progress``: how far a tuning is, derived from its events, in the words that a user reads.

The events are those of ``tirgemm.tune(on_event=...)`` and of a service's jobs. ``tirgemm._terminal.progress_view``
shows it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tirgemm.events import (
    BatchProposed,
    CandidateRecorded,
    Done,
    Downloaded,
    Event,
    Failed,
    FallbackStored,
    JobPolled,
    KernelSelected,
    Phase,
    PhaseEntered,
    SearchStarted,
    Standing,
    WasCancelled,
)
from tirgemm.status import ENDED, Status
from tirgemm.timings import Timing, Timings

_SEARCHING = frozenset({Phase.BUILDING, Phase.MEASURING})
_ENDED = frozenset(map(Phase, ENDED))


def role_name(role: str, *, portable: bool = False) -> str:
    """What a user reads for the ``role`` of a kernel: ``default`` for the one that the API calls ``fallback``, and
    ``portable`` for a tuned one that is."""
    return "default" if role == "fallback" else "portable" if portable else role


def role_description(role: str, *, portable: bool = False, other_device: str | None = None) -> str:
    """``role_name``, with what it is there for; ``other_device`` is the key of the one that its configs are from."""
    if role == "fallback":
        return "the default kernel (served meanwhile)"
    where = f"on another device, {_printable(other_device)}" if other_device else "elsewhere"
    chosen = f"{role}, portable: raced here, but chosen from configs that were measured {where}"
    return chosen if portable or other_device else role


def role_of_document(kernel: Mapping[str, Any]) -> str:
    """``role_description`` of a kernel document; that of an older service says less."""
    return role_description(
        kernel["role"], portable=kernel.get("portable", False), other_device=kernel.get("other_device")
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a tuning is at one moment. ``str()`` is the line that a user reads.

    ``done`` of ``total`` candidates are recorded, whatever came of them. ``best_us`` and ``default_us`` are the
    search's own times a call, None until there are any. ``seconds_left`` is what is left of the budget, None outside
    the search. ``kernel`` are the figures of the kernel that came of it, by the race that reports them, and
    ``kernel_config`` is its config.
    """

    phase: Phase = Phase.STARTING
    detail: str = ""
    done: int = 0
    total: int = 0
    measured: int = 0
    best_us: float | None = None
    best: str = ""
    default_us: float | None = None
    elapsed: float = 0.0
    seconds_left: float | None = None
    kernel: Timing | None = None
    kernel_config: str = ""

    @property
    def searched(self) -> bool:
        """Whether anything was tried beside the default."""
        return self.done > 1

    @property
    def searching(self) -> bool:
        return self.phase in _SEARCHING

    @property
    def speed(self) -> float | None:
        """The best's speed relative to the default's."""
        return self.default_us / self.best_us if self.default_us and self.best_us else None

    @property
    def activity(self) -> str:
        """The phase in plain words, with its detail: ``measuring 12 of 32``."""
        if self.phase is Phase.MEASURING:
            return f"measuring {self.done} of {self.total}" if self.total else "measuring"
        if self.phase is Phase.BUILDING:
            return f"building, {self.done} of {self.total} tried" if self.total else "building"
        if self.phase in _ENDED:
            return f"{self.phase.words}: {self.detail}" if self.detail else self.phase.words
        return self.phase.with_detail(self.detail)

    @property
    def figures(self) -> tuple[str, str]:
        """The best so far: ``("best", "6.00 us (1.12 x the default)")``; empty texts while there is none. At the end of
        a search it is the kernel, by the race that reports its figures; where that is not told, the search's best."""
        if self._ended_in is not None:
            name, us, speed = "the kernel takes", self._ended_in.median_us, self._ended_in.ratio_to("default")
        elif self.best_us is not None:
            name = "the search's best" if self.phase is Phase.DONE and self.searched else "best"
            us, speed = self.best_us, self.speed
        else:
            return "", ""
        return name, f"{us:.2f} us" + (f" ({speed:.2f} x the default)" if speed is not None else "")

    @property
    def standing(self) -> str:
        """The two ``figures`` in one text."""
        return " ".join(filter(None, self.figures))

    @property
    def config(self) -> str:
        """The config of what ``figures`` tell of."""
        return self.best if self._ended_in is None else self.kernel_config

    @property
    def _ended_in(self) -> Timing | None:
        return self.kernel if self.phase is Phase.DONE else None

    def __str__(self) -> str:
        if self.phase is Phase.DOWNLOADING:
            return self.activity
        left = f"at most {math.ceil(self.seconds_left)} s left" if self.seconds_left is not None else ""
        return ", ".join(part for part in (self.activity, self.standing, left) if part)


class ProgressTracker:
    """Sums up a tuning's events: call it with each; ``progress`` is the state at this moment. Safe from several
    threads."""

    def __init__(
        self, title: str = "", *, phase: Phase = Phase.STARTING, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.title = _printable(title)
        self.statuses: Counter[Status] = Counter()
        self.pruned: dict[str, int] = {}
        self.trials = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        # All but the times, which go on between events.
        self._told = Progress(phase)
        # Seconds that were left when that was last told, and when it was.
        self._left: tuple[float, float] | None = None
        self._phases_are_told = False

    def __call__(self, event: Event) -> None:
        """Take one event in; those that are unknown change nothing."""
        with self._lock:
            self._take(event)

    @property
    def progress(self) -> Progress:
        """The state at this moment."""
        with self._lock:
            now, told = self._clock(), self._told
            left = max(0.0, self._left[0] - (now - self._left[1])) if self._left is not None else None
            done = min(told.done, told.total) if told.total else told.done
            return replace(told, done=done, elapsed=now - self._started, seconds_left=left)

    def to_json(self) -> dict[str, Any]:
        """What ``tirgemm tune --json`` says of the search."""
        now = self.progress
        return {
            "trials": self.trials,
            "best_us": now.best_us,
            "best": now.best,
            "statuses": dict(self.statuses),
            "pruned": dict(self.pruned),
            "elapsed_s": now.elapsed,
        }

    def _take(self, event: Event) -> None:
        match event:
            case PhaseEntered(phase=phase, detail=detail, seconds_left=left):
                if phase is not None:  # else of a newer service
                    self._phases_are_told = True
                    self._enter(phase, detail)
                    self._take_seconds_left(left)
            case SearchStarted(budget=budget, recorded=recorded, standing=standing):
                self._told = replace(self._told, total=_count(budget.get("trials")) or self._told.total, done=recorded)
                self._take_standing(standing)
                self._enter(Phase.STARTING)
            case FallbackStored():
                self._take_fallback(event)
            case BatchProposed(trials=trials, pruned=pruned, seconds_left=left):
                self.trials = trials or self.trials
                self.pruned = {_printable(rule): _count(n) for rule, n in pruned.items()}
                self._take_seconds_left(left)
                self._guess(Phase.BUILDING)
            case CandidateRecorded():
                self._take_candidate(event)
            case KernelSelected():
                self._take_seconds_left(None)
                self._guess(Phase.CERTIFYING)
            case JobPolled(document=document):
                if document.get("status") == "running" and self._told.phase is Phase.QUEUED:
                    self._enter(Phase.STARTING)
            case Downloaded(bytes=done, total=total):
                of = f" of {math.ceil(total / 1024)}" if total else ""
                self._enter(Phase.DOWNLOADING, f"{math.ceil(done / 1024)}{of} KiB")
            case Done(stored=stored, timings=timings, config=config):
                kernel = None if stored or not self._told.searched else _first(timings)
                self._told = replace(self._told, kernel=kernel, kernel_config=_printable(config))
                self._enter(Phase.DONE, "it was in the database" if stored else "")
            case Failed(error=error):
                self._enter(Phase.FAILED, error or "")
            case WasCancelled():
                self._enter(Phase.CANCELLED)

    def _take_fallback(self, event: FallbackStored) -> None:
        timing, told = _first(event.timings), self._told
        if timing is not None:
            told = replace(
                told,
                default_us=None if event.role == "tuned" else timing.median_us,
                best_us=timing.median_us if told.best_us is None else told.best_us,
                best=told.best or _printable(event.config),
            )
        self._told = replace(told, measured=max(told.measured, 1), done=max(told.done, 1))
        if told.phase is not Phase.QUEUED:  # it may be built for a job that waits
            self._guess(Phase.BUILDING)

    def _take_candidate(self, event: CandidateRecorded) -> None:
        if event.status is not None:
            self.statuses[event.status] += 1
        self.trials = event.trials or self.trials
        self._told = replace(self._told, total=event.of or self._told.total, done=self._told.done + 1)
        self._take_standing(event.standing)
        self._take_seconds_left(event.seconds_left)
        self._guess(Phase.MEASURING)

    # -- what several events tell --------------------------------------------------------------

    def _enter(self, phase: Phase, detail: str = "") -> None:
        self._told = replace(self._told, phase=phase, detail=_printable(detail))
        if phase in _ENDED:
            self._left = None

    def _guess(self, phase: Phase) -> None:
        """The phase that an event implies, where the tuner does not tell its phases itself."""
        if not self._phases_are_told:
            self._enter(phase)

    def _take_standing(self, standing: Standing) -> None:
        told = self._told
        told = replace(told, done=standing.tried or told.done, measured=standing.measured or told.measured)
        best, default = _time(standing.best_us), _time(standing.default_us)
        if best is not None:
            told = replace(told, best_us=best, best=_printable(standing.best or ""))
        self._told = told if default is None else replace(told, default_us=default)

    def _take_seconds_left(self, left: float | None) -> None:
        self._left = None if left is None else (max(0.0, float(left)), self._clock())


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None


def _first(timings: Timings) -> Timing | None:
    """The figures of the regime that was searched in, which comes first."""
    timed = (timing for timing in timings.regimes.values() if isinstance(timing, Timing))
    return next((timing for timing in timed if _time(timing.median_us) is not None), None)


def _printable(text: str) -> str:
    """One line without control characters: what a service says must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in text)
