"""Budget of a search: its effort with bounds in trials and seconds, and the test whether a stored kernel's search
covers a requested one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tirgemm.errors import InvalidRequest
from tirgemm.tuning.effort import Effort, effort_named

if TYPE_CHECKING:
    from tirgemm.status import Role
    from tirgemm.timings import SearchSummary
    from tirgemm.tuning.records import KernelRecord

_EFFORTS: dict[str | None, Effort] = {str(effort): effort for effort in Effort}
MAX_TRIALS = 100_000
# Shipped configs of a problem that a search has left behind: what was collected to learn from has fewer.
SEARCHED = 24
MAX_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may spend: it ends by its ``effort``, after ``trials`` candidates built (those already recorded for
    the problem count) or ``seconds`` of search at the latest.

    Building the fallback, selecting and certifying come on top. ``asked`` is the effort that somebody named, where the
    search makes another one, and ``more`` the trials, where they come on top of what is recorded. Raises InvalidRequest
    outside the limits.
    """

    trials: int = Effort.STANDARD.usual_trials
    seconds: float = Effort.STANDARD.usual_seconds
    effort: Effort = Effort.STANDARD
    asked: Effort | None = field(default=None, kw_only=True, compare=False)
    more: int | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        if type(self.trials) is not int or not 1 <= self.trials <= MAX_TRIALS:
            raise InvalidRequest(f"budget trials is {self.trials!r}; it must be an integer from 1 to {MAX_TRIALS}")
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, (int, float)):
            raise InvalidRequest(f"budget seconds is {self.seconds!r}; it must be a number")
        if not 0 < self.seconds <= MAX_SECONDS:
            raise InvalidRequest(f"budget seconds is {self.seconds}; it must be above 0 and at most {MAX_SECONDS:.0f}")
        effort_named(self.effort)

    @classmethod
    def of(cls, effort: str | None = None, trials: int | None = None, seconds: float | None = None) -> Budget:
        """The budget of an effort, ``standard`` where none is named, with the effort's own bounds where none are."""
        chosen = Effort.STANDARD if effort is None else effort_named(effort)
        return cls(
            chosen.usual_trials if trials is None else trials,
            chosen.usual_seconds if seconds is None else seconds,
            chosen,
        )

    def to_json(self) -> dict[str, Any]:
        return {"trials": self.trials, "seconds": self.seconds}

    def on_top_of(self, spent: int) -> Budget:
        """The budget of a search that goes on from ``spent`` recorded trials and is to try ``trials`` more: for who
        wants more than the effort gave, so that only a gain of next to nothing ends it earlier. ``none`` searches
        nothing."""
        if self.effort is Effort.NONE:
            return self
        more, asked = self.more or self.trials, self.asked or self.effort
        return Budget(min(more + spent, MAX_TRIALS), self.seconds, Effort.EXHAUSTIVE, asked=asked, more=more)


def is_within_default(budget: Budget) -> bool:
    """Whether ``budget`` asks for no more than one that nobody named."""
    return budget.effort.level <= Budget().effort.level and budget.trials <= Budget().trials


class SearchRecord(Protocol):
    """What a kernel, or a short account of one, says of the search behind it."""

    @property
    def role(self) -> Role: ...
    @property
    def trials(self) -> int: ...
    @property
    def search(self) -> SearchSummary | None: ...


def shipped_effort(configs: int | None) -> Effort:
    """The effort that so many shipped configs of a problem stand for, None where nobody said: the usual one, or, of
    those that were only collected, ``quick``."""
    return Effort.STANDARD if configs is None or configs >= SEARCHED else Effort.QUICK


def effort_of(record: SearchRecord) -> Effort:
    """The effort that the search behind ``record`` made, or that its shipped configs stand for; the usual one where
    that is not said, or is another version's level."""
    if record.role != "tuned":
        return Effort.NONE
    search = record.search
    if search is not None and search.ended == "shipped":
        return shipped_effort(search.shipped.configs if search.shipped is not None else None)
    return _EFFORTS.get(search.effort if search else None, Effort.STANDARD)


def covers(record: KernelRecord, budget: Budget, families: Collection[str] | None = None) -> bool:
    """Whether the search behind ``record`` did what ``budget`` asks for, so that ``record`` is the answer.

    True for a tuned kernel whose search came to the end of that effort or a larger one, tried at least
    ``budget.trials`` candidates and was not interrupted, used up the space, or used up at least ``budget.seconds``, in
    all of ``families`` (None: all that support the problem). A kernel of shipped records stands for a search of the
    usual budget, one of fewer than SEARCHED configs for ``quick``. Of effort ``none`` any kernel that is certified is
    the answer. Any other request goes on from the records.
    """
    if budget.effort is Effort.NONE and families is not None and record.config.family not in families:
        return False
    return search_covers(record, budget, families)


def search_covers(record: SearchRecord, budget: Budget, families: Collection[str] | None = None) -> bool:
    """``covers`` by what the search was, whatever the family that it chose."""
    if budget.effort is Effort.NONE:
        return record.role != "unverified"
    search = record.search
    searched = search.families if search else None  # None: all that support the problem
    if record.role != "tuned" or (searched is not None and (families is None or not set(families) <= set(searched))):
        return False
    ended, seconds = (search.ended, search.seconds or 0.0) if search else (None, 0.0)
    if ended == "shipped" and is_within_default(budget) and effort_of(record).level >= budget.effort.level:
        return True
    if ended in ("expected_gain", "complete") and effort_of(record).level >= budget.effort.level:
        return True
    if ended == "seconds" and budget.seconds <= seconds:
        return True
    return ended == "exhausted" or (budget.trials <= record.trials and ended != "interrupted")
