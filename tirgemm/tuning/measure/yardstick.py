"""Yardsticks: the kernel of a problem that a search's candidates are timed beside on a GPU.

Candidates are timed one after the other, and at the power limit the clock depends on what ran before: after a pause it
is higher than it stays. In the same tenth of a second the clock is the same for both.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import SampleSet

# Problems whose yardsticks are kept: more than a kernel set has sizes.
_KEPT = 64


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A kernel by its config's ``digest`` and its package, and the time that it has in the records."""

    digest: str
    package: bytes
    us: float

    def mark(self, samples: SampleSet) -> SampleSet:
        """``samples`` that were taken beside it, with what makes them comparable."""
        return replace(samples, conditions=samples.conditions | {"yardstick": self.digest, "yardstick_us": self.us})


class Yardsticks:
    """The yardsticks of the problems of one store that were searched last. For several threads."""

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[Gemm, Regime], Yardstick] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, gemm: Gemm, regime: Regime) -> Yardstick | None:
        with self._lock:
            return self._of.get((gemm, regime))

    def offer(self, gemm: Gemm, regime: Regime, yardstick: Yardstick) -> None:
        """Keep it for the problem, unless that has one."""
        with self._lock:
            self._of.setdefault((gemm, regime), yardstick)
            self._of.move_to_end((gemm, regime))
            if len(self._of) > _KEPT:
                self._of.popitem(last=False)

    def drop(self, gemm: Gemm, regime: Regime) -> None:
        """Forget the problem's: another is taken."""
        with self._lock:
            self._of.pop((gemm, regime), None)
