"""Yardsticks: the kernel of a problem that a search's candidates are timed beside on a GPU.

Candidates are timed one after the other, and at the power limit the clock depends on what ran before: after a pause it
is higher than it stays. In the same run the clock is the same for both.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from tirgemm.errors import ArtifactError, StoreError
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import CandidateKey, SampleSet
from tirgemm.tuning.records.store import Store

# Problems whose yardsticks are kept for other searches than their own: more than the sizes at which kernels of a range
# of m up to 8192 are compared.
_KEPT = 64


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A kernel by its config's ``digest`` and its package, and the time by which others become comparable with it."""

    digest: str
    package: bytes
    us: float

    def mark(self, samples: SampleSet) -> SampleSet:
        """``samples`` that were taken beside it, with what makes them comparable."""
        return replace(samples, conditions=samples.conditions | {"yardstick": self.digest, "yardstick_us": self.us})


class Yardsticks:
    """The yardsticks of the problems of one store that were searched last, in one process. For several threads."""

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[Gemm, Regime], Yardstick] = OrderedDict()
        self._proven: set[Yardstick] = set()
        self._refused: set[tuple[Gemm, Regime, str]] = set()
        self._lock = threading.Lock()

    def get(self, gemm: Gemm, regime: Regime) -> Yardstick | None:
        with self._lock:
            return self._of.get((gemm, regime))

    def offer(self, gemm: Gemm, regime: Regime, yardstick: Yardstick, *, proven: bool) -> Yardstick | None:
        """Keep it for the problem, unless that has one or this was refused; the one that the problem has then.
        ``proven``: it has run in this process."""
        with self._lock:
            if (gemm, regime, yardstick.digest) in self._refused:
                return self._of.get((gemm, regime))
            kept = self._of.setdefault((gemm, regime), yardstick)
            if kept is yardstick and proven:
                self._proven.add(yardstick)
            self._of.move_to_end((gemm, regime))
            if len(self._of) > _KEPT:
                _, oldest = self._of.popitem(last=False)
                self._proven.discard(oldest)
            return kept

    def prove(self, gemm: Gemm, regime: Regime, yardstick: Yardstick) -> None:
        """It has run beside a candidate: what ends a process from now on is the candidate's doing."""
        with self._lock:
            if self._of.get((gemm, regime)) == yardstick:
                self._proven.add(yardstick)

    def refuse(self, gemm: Gemm, regime: Regime, yardstick: Yardstick) -> bool:
        """Whether it is not proven: then it is no yardstick of the problem any more, and never again."""
        with self._lock:
            if yardstick in self._proven:
                return False
            self._refused.add((gemm, regime, yardstick.digest))
            if self._of.get((gemm, regime)) == yardstick:
                del self._of[gemm, regime]
            return True


def answering(
    store: Store, gemm: Gemm, device_key: str, regime: Regime, require_ours: Callable[[bytes], object]
) -> Yardstick | None:
    """The kernel that answers a problem, with its recorded time; None where there is none that can be read, or a set.
    ``require_ours`` raises ArtifactError where a package is signed by another."""
    try:
        known = store.kernel(gemm, device_key, regime)
        if known is None or known.timings.members is not None:
            return None
        recorded = store.candidate(CandidateKey(gemm, device_key, regime, known.config.digest))
        if recorded is None or recorded.search_us is None:
            return None
        package = store.get_blob(known.artifact_sha256)
        require_ours(package)
    except (StoreError, ArtifactError):
        return None
    return Yardstick(known.config.digest, package, recorded.search_us)
