"""``tune``: from a problem to a tuned, verified, signed kernel; ``Tuning``: the same in stages, for a worker.

fallback -> search -> selection -> certificate -> artifact. Every record is committed before the next candidate runs,
so that a kill costs at most the one in flight and the next start goes on from the records.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tirgemm.artifact import Kernel, Signer, Trust, load
from tirgemm.config import Config
from tirgemm.detect import check_fits
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import Cancelled, DeviceUnavailable, InvalidRequest, TirgemmError
from tirgemm.families import Family, family_named, supporting
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.evaluate import Evaluator
from tirgemm.tuning.finish import finish
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.records import Candidate, KernelRecord, Status
from tirgemm.tuning.search import Proposal, Search
from tirgemm.tuning.store import Store
from tirgemm.tuning.workbench import Workbench

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary

__all__ = ["Budget", "TunedKernel", "Tuning", "Workbench", "tune"]

EventHandler = Callable[[str, dict[str, Any]], None]
_POLL_S = 0.1


def tune(
    gemm: Gemm | str,
    device: Device | str | None = None,
    regime: str = "sustained",
    budget: Budget | None = None,
    *,
    seed: int = 0,
    store: Store | None = None,
    on_event: EventHandler | None = None,
    cancel: threading.Event | None = None,
    families: Iterable[str] | None = None,
    lock_dir: Path | None = None,
    signer: Signer | None = None,
) -> TunedKernel:
    """Find the fastest verified kernel for ``gemm`` on ``device`` in ``regime`` and return it, ready to call.

    ``device`` is ``cpu``, ``cuda:0`` and so on (default: the first GPU, else the CPU) and must be present. With a
    ``store`` the search goes on from what is recorded there; without, everything stays in memory. ``on_event`` gets
    (kind, data) for ``started``, ``fallback``, ``batch``, ``candidate``, ``selected`` and ``done``. Setting ``cancel``
    ends it within a second with Cancelled; what was recorded stays. ``seed`` fixes what is proposed for given
    measurements. Raises Unsupported, DoesNotFit, DeviceUnavailable, InvalidRequest, Cancelled.
    """
    problem = Gemm.parse(gemm) if isinstance(gemm, str) else gemm
    with Workbench(detect_device(device), store or MemoryStore(), signer, lock_dir=lock_dir) as bench:
        tuning = Tuning(
            problem, bench, regime, budget, seed=seed, on_event=on_event, cancel=cancel, families=families
        )  # fmt: skip
        record = tuning.run()
        return TunedKernel(record, bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public))


@dataclass(frozen=True)
class TunedKernel:
    """What ``tune`` returns: the record, the artifact's bytes, and the kernel itself, loaded at first use."""

    record: KernelRecord
    package: bytes
    trust: Trust

    @cached_property
    def kernel(self) -> Kernel:
        """The loaded artifact."""
        return load(self.package, trust=self.trust)

    def __call__(self, *tensors: Any, **keywords: Any) -> Any:
        """Call the kernel: ``a, b[, c][, bias]``, keywords ``alpha``, ``beta``, ``out``."""
        return self.kernel(*tensors, **keywords)

    def save(self, path: Path | str) -> None:
        """Write the artifact to ``path``."""
        Path(path).write_bytes(self.package)


class Tuning:
    """One tuning of one problem, in stages that a worker can drive and interrupt."""

    def __init__(
        self,
        gemm: Gemm,
        workbench: Workbench,
        regime: str = "sustained",
        budget: Budget | None = None,
        *,
        seed: int = 0,
        on_event: EventHandler | None = None,
        cancel: threading.Event | None = None,
        between_batches: Callable[[], None] | None = None,
        families: Iterable[str] | None = None,
    ) -> None:
        if regime not in REGIMES:
            raise InvalidRequest(f"regime is {regime!r}; it must be one of {', '.join(REGIMES)}")
        self.gemm = gemm
        self.workbench = workbench
        self.device = workbench.device
        self.store = workbench.store
        self.regime = regime
        self.budget = budget or Budget()
        self.seed = seed
        self.cancel = cancel or threading.Event()
        self._on_event = on_event
        self._between_batches = between_batches
        check_fits(gemm, self.device)
        self.families: tuple[Family, ...] = _chosen(gemm, self.device, families)
        self.evaluator = Evaluator(gemm, workbench, regime, seed=seed, cancel=self.cancel)

    # -- stages --------------------------------------------------------------------------------

    def default(self) -> tuple[Family, Config]:
        """The best-predicted default over the supporting families."""
        choices = [(f, f.default(self.gemm, self.device, self.regime)) for f in self.families]
        return min(choices, key=lambda pair: pair[0].predict_us(self.gemm, pair[1], self.device, self.regime))

    def fallback(self) -> KernelRecord:
        """The default, built, certified, timed and stored: the answer until the search has a better one.

        Where the best-predicted default does not build or is wrong, the other families' defaults are tried in turn.
        """
        known = self.store.kernel(self.gemm, self.device.key, self.regime)
        if known is not None:
            return known
        self._require_present()
        choices = sorted(
            ((f, f.default(self.gemm, self.device, self.regime)) for f in self.families),
            key=lambda pair: pair[0].predict_us(self.gemm, pair[1], self.device, self.regime),
        )
        failures: list[TirgemmError] = []
        for _, config in choices:
            self._raise_if_cancelled()
            try:
                record = self.evaluator.certified_default(config)
            except TirgemmError as error:
                if isinstance(error, Cancelled):
                    raise
                failures.append(error)
                continue
            self.emit("fallback", kernel=record.id, config=str(config), timings=record.timings)
            return record
        words = "; ".join(f"{config}: {error}" for (_, config), error in zip(choices, failures, strict=True))
        raise type(failures[0])(f"no default of {self.gemm} on {self.device.name} works: {words}") from failures[0]

    def run(self) -> KernelRecord:
        """All stages. Returns the selected, certified kernel, stored as the answer."""
        self._require_present()
        self.emit("started", gemm=str(self.gemm), device=self.device.key, regime=self.regime,
                  families=[f.name for f in self.families],
                  space={f.name: f.space(self.gemm, self.device).size for f in self.families},
                  budget=self.budget.to_json(), recorded=len(self._recorded()))  # fmt: skip
        try:
            self.fallback()
            summary = self.search()
            self._raise_if_cancelled()
            record = finish(self, summary)
        except Cancelled:
            self.emit("cancelled", recorded=len(self._recorded()))
            raise
        self.emit("done", kernel=record.id, config=str(record.config), timings=record.timings)
        return record

    def cross_compile(self) -> KernelRecord:
        """The default for a device that is not here: built, packaged, marked unverified, never timed."""
        family, config = self.default()
        binary = self._wait(self.workbench.build(self.gemm, config))
        timings = {"predicted_us": family.predict_us(self.gemm, config, self.device, self.regime)}
        record = self.evaluator.store_kernel(config, binary, "unverified", None, timings)
        self.emit("done", kernel=record.id, config=str(config), timings=timings)
        return record

    def search(self) -> dict[str, Any]:
        """Propose, build, verify, measure and record until the budget is spent. Returns what was tried, by count."""
        recorded = self._recorded()
        search = Search(
            self.gemm, self.device, self.regime, self.families, seed=self.seed, recorded=recorded,
            history=self.store.history(self.device.key, self.regime),
        )  # fmt: skip
        loop = _Loop(self, search, trials=len([c for c in recorded if c.status is not Status.PRUNED]))
        loop.run()
        self._record_pruned(search)
        return {"trials": loop.trials, "pruned": dict(search.pruned), "statuses": self._statuses()}

    # -- shared with the loop and with finish --------------------------------------------------

    def emit(self, kind: str, /, **data: Any) -> None:
        """Tell the caller what happened, with the time."""
        if self._on_event is not None:
            self._on_event(kind, data | {"at": datetime.now(UTC).isoformat(timespec="milliseconds")})

    def between_batches(self) -> None:
        if self._between_batches is not None:
            self._between_batches()

    def _raise_if_cancelled(self) -> None:
        if self.cancel.is_set():
            raise Cancelled(f"tuning of {self.gemm} was cancelled; {len(self._recorded())} records are kept")

    def _require_present(self) -> None:
        if not self.device.present:
            raise DeviceUnavailable(
                f"device {self.device.name} is only named; nothing can be verified or timed on it here"
            )

    def _recorded(self) -> list[Candidate]:
        return self.store.candidates(self.gemm, self.device.key, self.regime)

    def _statuses(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for candidate in self._recorded():
            counts[candidate.status.value] = counts.get(candidate.status.value, 0) + 1
        return counts

    def _record_pruned(self, search: Search) -> None:
        """Keep a few examples of what each rule rejected, so that a person can see why."""
        for rule, examples in search.pruned_examples.items():
            for config, reason in examples[:3]:
                candidate = Candidate(
                    self.gemm, self.device.key, self.regime, config, Status.PRUNED, message=reason, rule=rule
                )
                if self.store.candidate(candidate.key) is None:
                    self.store.add_candidate(candidate)

    def _wait(self, future: Future[Binary]) -> Binary:
        while True:
            done, _ = wait([future], timeout=_POLL_S)
            if done:
                return future.result()
            if self.cancel.is_set():
                future.cancel()
                self._raise_if_cancelled()


class _Loop:
    """The search loop: keeps the build pool filled and the device busy. On a CPU building and measuring alternate."""

    def __init__(self, tuning: Tuning, search: Search, trials: int) -> None:
        self.tuning = tuning
        self.search = search
        self.trials = trials
        self.overlap = tuning.device.kind != "cpu"
        self.batch = max(8, 2 * tuning.workbench.pool.processes) if self.overlap else 8
        self.deadline = time.monotonic() + tuning.budget.seconds
        self.building: dict[Future[Binary], Proposal] = {}
        self.built: deque[tuple[Proposal, Future[Binary]]] = deque()
        self.exhausted = False

    def run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            for future in self.building:
                future.cancel()

    def _step(self) -> bool:
        self.tuning._raise_if_cancelled()
        if self._wants_proposals():
            self._propose()
        self._collect(block=not self.built or not self.overlap)
        if self.built and (self.overlap or not self.building):
            self._measure_one()
        late = time.monotonic() > self.deadline
        if late:
            for future in list(self.building):
                if future.cancel():
                    del self.building[future]
                    self.trials -= 1
            while self.built and late:
                self.built.popleft()
                self.trials -= 1
        return bool(self.building or self.built) or self._may_propose()

    def _may_propose(self) -> bool:
        return not self.exhausted and self.trials < self.tuning.budget.trials and time.monotonic() < self.deadline

    def _wants_proposals(self) -> bool:
        if not self._may_propose():
            return False
        return (
            len(self.building) + len(self.built) <= self.batch // 2
            if self.overlap
            else not (self.building or self.built)
        )

    def _propose(self) -> None:
        self.tuning.between_batches()
        proposals = self.search.propose(min(self.batch, self.tuning.budget.trials - self.trials))
        self.exhausted = not proposals
        self.trials += len(proposals)
        for proposal in proposals:
            self.building[self.tuning.workbench.build(self.tuning.gemm, proposal.config)] = proposal
        self.tuning.emit("batch", proposed=len(proposals), trials=self.trials, pruned=dict(self.search.pruned))

    def _collect(self, *, block: bool) -> None:
        if not self.building:
            return
        done, _ = wait(self.building, timeout=_POLL_S if block else 0, return_when=FIRST_COMPLETED)
        for future in [f for f in self.building if f in done]:  # in the order of the proposals
            self.built.append((self.building.pop(future), future))

    def _measure_one(self) -> None:
        proposal, future = self.built.popleft()
        candidate = self.tuning.evaluator.candidate(proposal, future)
        self.search.report([candidate])
        best = min((c for c in self.tuning._recorded() if c.search_us), key=lambda c: c.search_us or 0.0, default=None)
        self.tuning.emit(
            "candidate", config=str(candidate.config), digest=candidate.config.digest, status=candidate.status.value,
            us=candidate.search_us, message=candidate.message, trials=self.trials, of=self.tuning.budget.trials,
            predicted_us=candidate.predicted_us, best_us=best.search_us if best else None,
            best=str(best.config) if best else None,
        )  # fmt: skip


def _chosen(gemm: Gemm, device: Device, names: Iterable[str] | None) -> tuple[Family, ...]:
    """The supporting families, or those of them that were asked for by name."""
    found = supporting(gemm, device)
    if names is None:
        return found
    asked = [family_named(name) for name in names]
    for family in asked:
        reason = family.supports(gemm, device)
        if reason is not None:
            raise InvalidRequest(f"family {family.name} does not write {gemm} for {device.name}: {reason}")
    return tuple(f for f in found if f in asked)
