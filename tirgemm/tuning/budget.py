"""``Budget``: how much a search may spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirgemm.errors import InvalidRequest

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
