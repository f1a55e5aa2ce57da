"""``TuningTask``: what the stages of one tuning share: problem, workbench, budget, records, and what the caller is
told."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from tirgemm.config import Config
from tirgemm.detect import check_fits
from tirgemm.device import Device
from tirgemm.errors import ArtifactError, Cancelled, DeviceUnavailable, InvalidRequest, StoreError
from tirgemm.events import Event, EventHandler, Phase, PhaseEntered, Standing
from tirgemm.families import Family, family_named, refusal, supporting
from tirgemm.families.choice import default_of
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.evaluate import Evaluator
from tirgemm.tuning.process.interrupts import StopSignal
from tirgemm.tuning.records import Candidate, KernelRecord, Status
from tirgemm.tuning.workbench import Workbench


@dataclass(frozen=True)
class Control:
    """How a caller follows a tuning and ends it.

    ``on_event`` is told what happens; ``between_batches`` is called before each batch of the search. Setting ``cancel``
    ends the tuning with Cancelled; setting ``stop`` ends its search, and it goes on with the best so far.
    """

    on_event: EventHandler | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    between_batches: Callable[[], None] | None = None


class TriedCandidates:
    """The candidates of ``families`` that a search has tried, and how it stands by them: what is ``recorded``, and what
    is taken in once that is. To read all records anew for each would take longer than to measure one. ``default_of``
    names a family's default; of those of which nothing was tried it is not asked, since it takes milliseconds."""

    def __init__(
        self, default_of: Callable[[str], Config | None], families: frozenset[str], recorded: Iterable[Candidate]
    ) -> None:
        self._default_of = default_of
        self._families = families
        self._times: dict[Config, float | None] = {}
        self.take_in(recorded)

    def take_in(self, recorded: Iterable[Candidate]) -> None:
        """Count these candidates, too; one that was there already is replaced."""
        for candidate in recorded:
            if candidate.status is not Status.PRUNED and candidate.config.family in self._families:
                us = candidate.search_us if candidate.status is Status.MEASURED else None
                self._times[candidate.config] = us

    def standing(self) -> Standing:
        """How many were tried and measured, the best and the default."""
        times = {config: us for config, us in self._times.items() if us is not None}
        best = min(times, key=lambda config: times[config], default=None)
        tried = map(self._default_of, {config.family for config in times})
        defaults = [times[config] for config in tried if config in times]
        return Standing(
            tried=len(self._times),
            measured=len(times),
            best_us=times[best] if best else None,
            best=str(best) if best else None,
            default_us=min(defaults, default=None),
        )


class TuningTask:
    """One problem to tune on one workbench, in one regime, with one budget. With ``other_devices`` what was shipped for
    other devices of the architecture is tried, too."""

    def __init__(
        self,
        gemm: Gemm,
        workbench: Workbench,
        regime: Regime = "sustained",
        budget: Budget | None = None,
        *,
        seed: int = 0,
        families: Iterable[str] | None = None,
        control: Control | None = None,
        other_devices: bool = False,
    ) -> None:
        regime_named(regime)
        self.gemm = gemm
        self.workbench = workbench
        self.device: Device = workbench.device
        self.store = workbench.store
        self.regime = regime
        self.budget = budget or Budget()
        self.seed = seed
        self.other_devices = other_devices
        self._control = control or Control()
        self.end = StopSignal(self._control.cancel, self._control.stop)
        # When the search is to end, by time.monotonic(), while there is one.
        self.deadline: float | None = None
        self._phase: tuple[Phase, str] = Phase.STARTING, ""
        check_fits(gemm, self.device)
        self.families: tuple[Family, ...] = chosen_families(gemm, self.device, families)
        self._defaults: dict[str, Config | None] = {}
        self.evaluator = Evaluator(gemm, workbench, regime, seed=seed, cancel=self.end)

    # -- what the caller is told ---------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Tell the caller what happened."""
        if self._control.on_event is not None:
            self._control.on_event(event)

    def enter(self, phase: Phase, detail: str = "") -> None:
        """Tell the caller what is being done from now on, unless that is what was told last."""
        if self._phase != (phase, detail):
            self._phase = phase, detail
            self._tell_phase(phase, detail)

    def tell_wait(self, reason: str) -> None:
        """Tell what building or measuring waits for, as a phase of its own; then the phase that goes on."""
        self._tell_phase(*((Phase.WAITING, reason) if reason else self._phase))

    def seconds_left(self) -> float | None:
        """What is left of the budget; None outside the search, and behind it where a range is cut."""
        if self.deadline is None or math.isinf(self.deadline):
            return None
        return round(max(0.0, self.deadline - time.monotonic()), 1)

    def between_batches(self) -> None:
        if self._control.between_batches is not None:
            self._control.between_batches()

    def _tell_phase(self, phase: Phase, detail: str) -> None:
        self.emit(PhaseEntered(phase=phase, detail=detail, seconds_left=self.seconds_left()))

    # -- what the records say ------------------------------------------------------------------

    def stored(self) -> KernelRecord | None:
        """The kernel that is the answer so far."""
        return self.store.kernel(self.gemm, self.device.key, self.regime, other_devices=self.other_devices)

    def loadable(self) -> KernelRecord | None:
        """The kernel that is the answer so far, unless its artifact is lost, damaged or signed by another: then it is
        to be built here again."""
        known = self.stored()
        if known is not None:
            try:
                self.evaluator.kernel_sha256(self.store.get_blob(known.artifact_sha256))
            except (ArtifactError, StoreError):
                return None
        return known

    def recorded(self) -> list[Candidate]:
        return self.store.candidates(self.gemm, self.device.key, self.regime)

    def measured(self) -> dict[Config, float]:
        """Microseconds by the search of what was measured and its families still write, the fastest first: a record may
        be older than a knob."""
        spaces = {family.name: family.space(self.gemm, self.device) for family in self.families}
        recorded = [c for c in self.recorded() if c.status is Status.MEASURED and c.config.family in spaces]
        times = {c.config: c.search_us for c in recorded if spaces[c.config.family].has(c.config)}
        return dict(sorted(((c, us) for c, us in times.items() if us is not None), key=itemgetter(1)))

    def is_ours(self, config: Config) -> bool:
        """Whether it is of a family that is searched: what others have recorded is not this search's budget."""
        return config.family in {family.name for family in self.families}

    def tried(self) -> TriedCandidates:
        """What has been tried by the records, to be kept up as more is recorded."""
        names = frozenset(family.name for family in self.families)
        return TriedCandidates(self._default_of, names, self.recorded())

    def standing(self) -> Standing:
        """How the search stands by the records: how many were tried and measured, the best and the default."""
        return self.tried().standing()

    def _default_of(self, name: str) -> Config | None:
        """The default of a family; asked for with each candidate."""
        if name not in self._defaults:
            self._defaults[name] = default_of(family_named(name), self.gemm, self.device, self.regime)
        return self._defaults[name]

    # -- what ends it --------------------------------------------------------------------------

    def raise_if_cancelled(self) -> None:
        if self.end.cancel.is_set():
            raise Cancelled(f"tuning of {self.gemm} was cancelled; {len(self.recorded())} records are kept")

    def require_present(self) -> None:
        if not self.device.present:
            raise DeviceUnavailable(self.device.only_named)


def chosen_families(gemm: Gemm, device: Device, names: Iterable[str] | None) -> tuple[Family, ...]:
    """The supporting families, or those of them that were asked for by name."""
    offered = supporting(gemm, device)
    if names is None:
        return offered
    asked = [family_named(name) for name in names]
    for family in asked:
        reason = refusal(family, gemm, device)
        if reason is not None:
            raise InvalidRequest(f"family {family.name} does not write {gemm} for {device.name}: {reason}")
    return tuple(family for family in offered if family in asked)
