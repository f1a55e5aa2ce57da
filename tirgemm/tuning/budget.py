"""Budget of a search in trials and seconds, and the test whether a stored kernel's search covers a requested one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.errors import InvalidRequest

if TYPE_CHECKING:
    from tirgemm.tuning.records import KernelRecord

MAX_TRIALS = 100_000
MAX_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """At most ``trials`` candidates built (those already recorded for the problem count) and ``seconds`` of search.

    Building the fallback, selecting and certifying come on top. Raises InvalidRequest outside the limits.
    """

    trials: int = 32
    seconds: float = 120.0

    def __post_init__(self) -> None:
        if type(self.trials) is not int or not 1 <= self.trials <= MAX_TRIALS:
            raise InvalidRequest(f"budget trials is {self.trials!r}; it must be an integer from 1 to {MAX_TRIALS}")
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, (int, float)):
            raise InvalidRequest(f"budget seconds is {self.seconds!r}; it must be a number")
        if not 0 < self.seconds <= MAX_SECONDS:
            raise InvalidRequest(f"budget seconds is {self.seconds}; it must be above 0 and at most {MAX_SECONDS:.0f}")

    def to_json(self) -> dict[str, Any]:
        return {"trials": self.trials, "seconds": self.seconds}

    def on_top_of(self, spent: int) -> Budget:
        """This budget for a search that goes on from ``spent`` recorded trials and is to try ``trials`` more."""
        return Budget(min(self.trials + spent, MAX_TRIALS), self.seconds)


def usual(budget: Budget) -> bool:
    """Whether ``budget`` asks for no more trials than one that nobody named."""
    return budget.trials <= Budget().trials


def covers(record: KernelRecord, budget: Budget, families: Collection[str] | None = None) -> bool:
    """Whether the search behind ``record`` did what ``budget`` asks for, so that ``record`` is the answer.

    True for a tuned kernel whose search tried at least ``budget.trials`` candidates, or used up the space, or used up
    at least ``budget.seconds``, in all of ``families`` (None: all that support the problem). A kernel of shipped
    records stands for a search of the usual budget. Any other request goes on from the records.
    """
    search = record.timings.search
    searched = search.families if search else None  # None: all that support the problem
    if record.role != "tuned" or (searched is not None and (families is None or not set(families) <= set(searched))):
        return False
    ended, seconds = (search.ended, search.seconds or 0.0) if search else (None, 0.0)
    if ended == "shipped" and usual(budget):
        return True
    return budget.trials <= record.trials or ended == "exhausted" or (ended == "seconds" and budget.seconds <= seconds)
