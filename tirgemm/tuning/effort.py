"""Effort levels of a tuning: how far a search goes, and what it may spend where nobody names a budget."""

from __future__ import annotations

from enum import StrEnum

from tirgemm.errors import one_of


class Effort(StrEnum):
    """How far a search goes. A larger one goes on from the records of a smaller one; they compare in that order.

    ``none``: the default alone, certified, with no search. ``quick``: the best few that the ranking model expects, the
    default by analytic estimates, and the fastest of these with other cache policies, raced. ``standard``: more of
    them, then an evolution around the best, until the expected gain of the next batch is below ``least_gain``.
    ``exhaustive``: the same with a tenth of that.
    """

    NONE = "none"
    QUICK = "quick"
    STANDARD = "standard"
    EXHAUSTIVE = "exhaustive"

    @property
    def level(self) -> int:
        """0 for the least."""
        return list(Effort).index(self)

    @property
    def first(self) -> int:
        """How many of the best-expected configs are tried before anything is searched for."""
        return {Effort.NONE: 1, Effort.QUICK: 8}.get(self, 16)

    @property
    def variants(self) -> int:
        """How many variants of the fastest, with other cache policies, come behind them."""
        return 0 if self is Effort.NONE else 6

    @property
    def searches(self) -> bool:
        """Whether it goes on behind the first configs."""
        return self.level >= Effort.STANDARD.level

    @property
    def least_gain(self) -> float:
        """The expected gain in speed of the next batch, as a share, below which the search ends."""
        return 0.0005 if self is Effort.EXHAUSTIVE else 0.005

    @property
    def usual_trials(self) -> int:
        """The most candidates, where a budget does not say."""
        return {Effort.NONE: 1, Effort.QUICK: 18, Effort.STANDARD: 64}.get(self, 4096)

    @property
    def usual_seconds(self) -> float:
        """The most seconds of search, where a budget does not say."""
        return 3600.0 if self is Effort.EXHAUSTIVE else 120.0


def effort_named(name: str) -> Effort:
    """The effort of a name. Raises InvalidRequest with the names there are."""
    return one_of("effort", name, Effort)
