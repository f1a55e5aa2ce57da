"""``SetEvents``: events of the searches at sizes of m, told as those of one tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tirgemm.events import (
    BatchProposed,
    BuildsCounted,
    CandidateRecorded,
    Event,
    EventHandler,
    FinalistsRaced,
    PhaseEntered,
    Standing,
)
from tirgemm.tuning.build.builds_report import BuildsReport


class SetEvents:
    """Adds up what the searches of the parts of a range of m tell, and tells it to ``emit``: candidates and proposals
    are counted over all of them, so are pruned configs and the queue of builds; what is of one part says which.
    ``standing`` says by the records how the ``whole`` range stands; it is asked when that may have changed."""

    def __init__(self, emit: EventHandler, whole: str, standing: Callable[[], Standing]) -> None:
        self._emit = emit
        self._whole = whole
        self._standing = standing
        self._stands: Standing | None = None
        self._builds = BuildsReport(emit)
        self._told = self._proposed = self._expected = 0
        # What those that have ended pruned, and what each that runs told last.
        self._pruned_before: Counter[str] = Counter()
        self._pruned: dict[int, Mapping[str, Any]] = {}
        self._counts: dict[int, BuildsCounted] = {}
        self._searches = 0

    def handler(self, m: str) -> EventHandler:
        """What hears the events of a search of the part ``m`` of the range."""
        search = self._searches
        self._searches += 1
        return lambda event: self._relay(event, search, m)

    def begin(self, candidates: int) -> None:
        """Searches begin that together try at most so many ``candidates``."""
        self._proposed, self._expected = self._told, self._told + candidates
        self._pruned_before = self._all_pruned()
        self._pruned.clear()
        self._stands = None

    def end(self) -> None:
        """These searches have ended, and so have their builds."""
        self._counts.clear()
        self._builds.tell(0, 0, 0)

    def _relay(self, event: Event, search: int, m: str) -> None:
        match event:
            case CandidateRecorded():
                self._told += 1
                self._proposed = max(self._proposed, self._told)
                if self._stands is None or m == self._whole:
                    self._stands = self._standing()
                self._emit(replace(event, m=m, trials=self._proposed, of=self._expected, standing=self._stands))
            case BatchProposed():
                self._proposed += event.proposed
                self._pruned[search] = event.pruned
                self._emit(replace(event, trials=self._proposed, pruned=dict(self._all_pruned())))
            case BuildsCounted():
                self._counts[search] = event
                counts = self._counts.values()
                self._builds.tell(
                    sum(one.queued for one in counts),
                    sum(one.building for one in counts),
                    sum(one.built for one in counts),
                )
            case FinalistsRaced():
                self._emit(replace(event, m=m))
            case PhaseEntered():
                self._emit(event)

    def _all_pruned(self) -> Counter[str]:
        total = Counter(self._pruned_before)
        for pruned in self._pruned.values():
            total.update(pruned)
        return total
