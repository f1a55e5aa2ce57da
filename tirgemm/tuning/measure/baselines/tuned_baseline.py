"""Baselines that must be tuned before they are timed: their candidates, and the choice of the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable

FINALISTS = 3
# Of so few candidates a report has every label, and so every time has a name.
_MOST_LABELS = 16

Call = Callable[[], object]


class Refused(Exception):
    """A candidate does not run this problem; the text says why."""


@dataclass(frozen=True)
class BaselineOption:
    """One way to compute a problem.

    ``call(i)`` is the call with the i-th set of operands; where the candidate does not run, either raises Refused, the
    first time that it is used. ``label`` is what a report says about it.
    """

    label: dict[str, Any]
    call: Callable[[int], Call]


class Baseline(Protocol):
    """A library's matmul for one problem."""

    def context(self) -> AbstractContextManager[Any]:
        """Calls within it go to the session's stream."""
        ...

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        """At least one, the library's own first choice first. Raises BaselineUnavailable."""
        ...


@dataclass(frozen=True)
class FastestOption:
    """The fastest candidate's index, microseconds of every one and of the finalists, by index, and who refused."""

    index: int
    screened_us: dict[int, float]
    finals_us: dict[int, float]
    refused: dict[int, str] = field(default_factory=dict)

    def to_json(self, labels: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """``screened_us`` by index, null for those that refused; ``refused`` holds at most three reasons; ``labels`` of
        few."""
        record: dict[str, Any] = {
            "candidates": len(labels),
            "chosen": self.index,
            "label": labels[self.index],
            "screened_us": [_rounded(self.screened_us.get(i)) for i in range(len(labels))],
            "finals_us": {str(i): _rounded(us) for i, us in self.finals_us.items()},
        }
        if len(labels) <= _MOST_LABELS:
            record["labels"] = list(labels)
        if self.refused:
            record["refused"] = {str(i): reason for i, reason in list(self.refused.items())[:3]}
        return record


def choose(
    count: int, screen: Callable[[int, float], float], final: Callable[[list[int]], Mapping[int, float]]
) -> FastestOption:
    """The fastest of ``count`` candidates.

    ``screen(i, best)`` takes a short look at one, in microseconds, ``best`` the fastest so far (it may spare those that
    are far behind); ``final`` times the fastest three against each other. Raises BaselineUnavailable where all refuse.
    """
    screened: dict[int, float] = {}
    refused: dict[int, str] = {}
    for i in range(count):
        try:
            screened[i] = screen(i, min(screened.values(), default=float("inf")))
        except Refused as reason:
            refused[i] = str(reason)
    if not screened:
        raise BaselineUnavailable(
            f"none of {count} candidates runs: {refused[0]}" if count else "there is no candidate"
        )
    best = sorted(screened, key=lambda i: screened[i])[:FINALISTS]
    finals = dict(final(best)) if len(best) > 1 else {}
    return FastestOption(min(finals, key=lambda i: finals[i]) if finals else best[0], screened, finals, refused)


def _rounded(us: float | None) -> float | None:
    return None if us is None else round(us, 3)
