"""From a built config to a stored record: package, verify, time, commit. What is measured is what would be served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tirgemm.artifact import Trust, read
from tirgemm.config import Config
from tirgemm.errors import (
    ArtifactError,
    Cancelled,
    DeviceUnavailable,
    InvalidRequest,
    StoreError,
    TirgemmError,
    VerificationFailed,
)
from tirgemm.gemm import Gemm, Regime
from tirgemm.status import Role
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning.measure import MeasurementCrashed, Measurer, Verification
from tirgemm.tuning.measure.conditions import now
from tirgemm.tuning.measure.errors import MeasurementTimedOut
from tirgemm.tuning.measure.measurer import LATE_BASELINES, SEARCH_SAMPLES, SLOW_BASELINES
from tirgemm.tuning.measure.race import Race, RaceResult
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.measure.yardstick import Yardstick, answering
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.records import YARDSTICK, Candidate, CandidateKey, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.search.search import Proposal
from tirgemm.tuning.selection import finalists_of
from tirgemm.tuning.workbench import Workbench

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

T = TypeVar("T")

MAX_ATTEMPTS = 2
# The default ahead of the search, whose user waits for it: as many samples as a candidate, since it counts as one, and
# as them without a warm-up.
FALLBACK_SAMPLES, FALLBACK_SECONDS = SEARCH_SAMPLES, 0.1
# Of how many of the fastest candidates the builds are kept: more than selection takes.
KEPT_BUILDS = 8


class Evaluator:
    """Evaluates configs of one problem on one workbench in one regime.

    On a GPU candidates are timed beside a yardstick, the same for all searches of the problem in this process: the
    kernel that answered when the first of them began, else the first that was timed.
    """

    def __init__(self, gemm: Gemm, workbench: Workbench, regime: Regime, *, seed: int, cancel: Flag) -> None:
        self.gemm = gemm
        self.workbench = workbench
        self.regime = regime
        self.seed = seed
        self.cancel = cancel
        self._default: tuple[Config, Binary] | None = None
        self._kept: dict[Config, tuple[float, Binary]] = {}
        self._own_yardstick: Yardstick | None = None
        self._keeping = threading.Lock()

    @property
    def measurer(self) -> Measurer:
        if self.workbench.measurer is None:
            raise DeviceUnavailable(self.workbench.device.only_named)
        return self.workbench.measurer

    @property
    def measurers(self) -> list[Measurer]:
        """The workbench's own, and those of other devices of the kind that it may use at this moment."""
        return [self.measurer, *self.workbench.helpers()]

    @property
    def baselines(self) -> tuple[str, ...]:
        """What every answer on this device is measured against: the installed ones that need no tuning themselves."""
        return tuple(name for name in self.measurer.baselines() if name not in SLOW_BASELINES)

    @property
    def ready_baselines(self) -> tuple[str, ...]:
        """Those of them for which nothing must be imported first: the fallback does not wait for the others."""
        return tuple(name for name in self.baselines if name not in LATE_BASELINES)

    @property
    def quick_baselines(self) -> tuple[str, ...]:
        """Baselines beside a short search, or none: all of them on a GPU; on a CPU without PyTorch, among whose ways to
        compute a problem the fastest must be found first."""
        return self.ready_baselines if self.workbench.device.kind == "cpu" else self.baselines

    def key(self, config: Config) -> CandidateKey:
        return CandidateKey(self.gemm, self.workbench.device.key, self.regime, config.digest)

    def candidates(
        self, finished: Sequence[tuple[Proposal, Future[Binary]]], measurers: Sequence[Measurer]
    ) -> list[Candidate]:
        """Verify and time finished builds side by side, each in one of ``measurers``, and commit the record of each,
        whatever its status. The first of them is the workbench's own, which takes over from one whose device is lost.

        The attempt is counted before anything runs; a config that has no record and whose attempts were lost
        ``MAX_ATTEMPTS`` times, each time with the whole process, is recorded as crashed without running. Raises
        Cancelled, and whatever else says nothing of a config; then nothing of that one is recorded and its attempt does
        not count: only a process that died leaves one.
        """
        begun: list[Candidate] = []
        try:
            begun.extend(map(self._begun, (proposal for proposal, _ in finished)))
            outcomes = self._side_by_side(begun, [build for _, build in finished], measurers)
            recorded = [outcome for outcome in outcomes if isinstance(outcome, Candidate)]
            for candidate in recorded:
                with spans.span("store"):
                    self.workbench.store.add_candidate(candidate)
            for outcome in outcomes:
                if not isinstance(outcome, Candidate):
                    raise outcome
        except BaseException:
            for base in begun:  # of those that were recorded nothing is withdrawn
                with suppress(StoreError):
                    self.workbench.store.withdraw_attempt(base.key, base.attempt)
            raise
        return recorded

    def _begun(self, proposal: Proposal) -> Candidate:
        """The candidate of a proposal whose attempt has begun: crashed, for as long as nothing else is known of it."""
        return Candidate(
            self.gemm,
            self.workbench.device.key,
            self.regime,
            proposal.config,
            Status.CRASHED,
            attempt=self.workbench.store.begin_attempt(self.key(proposal.config)),
            predicted_us=proposal.predicted_us,
        )

    def _side_by_side(
        self, begun: Sequence[Candidate], builds: Sequence[Future[Binary]], measurers: Sequence[Measurer]
    ) -> list[Candidate | BaseException]:
        """What became of each, the first in this thread, the others beside it."""
        own, *others = zip(begun, builds, measurers, strict=True)
        # Where there is nothing to time candidates beside, the first of them, if it is right, is for the others.
        first = [self._outcome(*own)] if self.workbench.device.kind == "cuda" and self._yardstick() is None else []
        with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="tirgemm-measure") as threads:
            asked = spans.traceparent()
            futures = [threads.submit(self._traced_outcome, asked, *work) for work in others]
            outcomes = [*(first or [self._outcome(*own)]), *(future.result() for future in futures)]
        for number, (base, build, _) in enumerate(others, 1):
            if isinstance(outcomes[number], DeviceUnavailable):
                outcomes[number] = self._outcome(base, build, measurers[0])
        return outcomes

    def _traced_outcome(self, trace: str | None, *work: Any) -> Candidate | BaseException:
        with spans.under(trace):
            return self._outcome(*work)

    @spans.spanned("candidate")
    def _outcome(self, base: Candidate, build: Future[Binary], measurer: Measurer) -> Candidate | BaseException:
        spans.annotate(config=str(base.config))
        if base.attempt > MAX_ATTEMPTS and self.workbench.store.candidate(base.key) is None:
            return base.with_(
                message=f"the process died during each of the {base.attempt - 1} attempts before this one"
            )
        try:
            candidate = self._evaluate(base, build, measurer)
        except BaseException as error:
            return error
        spans.annotate(status=candidate.status)
        return candidate

    def _evaluate(self, candidate: Candidate, build: Future[Binary], measurer: Measurer) -> Candidate:
        try:
            binary = build.result()
            package = self.workbench.package(self.gemm, candidate.config, binary)
            candidate = self._hashed(candidate, binary, package)
            verification, samples = self._timed(package, measurer)
        except TirgemmError as error:
            return failed(candidate, error)
        if not verification.passed or samples is None:
            return candidate.with_(status=Status.WRONG, error=verification.error, message=wrong_message(verification))
        self._offer_yardstick(candidate.config, package, samples)
        with self._keeping:
            known = self._kept | {candidate.config: (samples.comparable_us, binary)}
            times = {config: us for config, (us, _) in sorted(known.items(), key=lambda pair: pair[1][0])}
            self._kept = {config: known[config] for config in finalists_of(times, KEPT_BUILDS)}
        return candidate.with_(status=Status.MEASURED, error=verification.error, sample_sets=(samples,))

    def _timed(self, package: bytes, measurer: Measurer) -> tuple[Verification, SampleSet | None]:
        """The verification of a candidate, and its samples beside the yardstick.

        Where both end the process, and the yardstick has not run in this one before, the candidate runs alone, and the
        yardstick is not used again.
        """
        ask = partial(measurer.evaluate, package, self.regime, seed=self.seed, cancel=self.cancel)
        yardstick, yardsticks = self._yardstick(), self.workbench.yardsticks
        if yardstick is None:
            return ask(against={})
        try:
            verification, samples = ask(against={YARDSTICK: yardstick.package})
        except (MeasurementCrashed, MeasurementTimedOut, ArtifactError, InvalidRequest):
            if not yardsticks.refuse(self.gemm, self.regime, yardstick):
                raise
            self._own_yardstick = None
            return ask(against={})
        if samples is None:
            return verification, None
        yardsticks.prove(self.gemm, self.regime, yardstick)
        return verification, yardstick.mark(samples)

    def _yardstick(self) -> Yardstick | None:
        """The problem's yardstick on a GPU, if it has one: else the kernel that answers so far, with its recorded
        time."""
        if self.workbench.device.kind != "cuda":
            return None
        kept = self.workbench.yardsticks.get(self.gemm, self.regime)
        if kept is None:  # or forgotten, where many problems are searched at once
            key = self.gemm, self.workbench.device.key, self.regime
            mine = self._own_yardstick or answering(self.workbench.store, *key, self.kernel_sha256)
            if mine is not None:
                proven = mine is self._own_yardstick
                kept = self.workbench.yardsticks.offer(self.gemm, self.regime, mine, proven=proven)
        self._own_yardstick = kept
        return kept

    def _offer_yardstick(self, config: Config, package: bytes, samples: SampleSet) -> None:
        """Let candidates be timed beside this kernel from now on, where there is no other."""
        if self.workbench.device.kind == "cuda":
            mine = self._own_yardstick or Yardstick(config.digest, package, samples.comparable_us)
            self._own_yardstick = self.workbench.yardsticks.offer(self.gemm, self.regime, mine, proven=True)

    def _hashed(self, base: Candidate, binary: Binary, package: bytes) -> Candidate:
        return base.with_(
            source_sha256=binary.source_sha256,
            binary_sha256=binary.binary_sha256,
            kernel_sha256=self.kernel_sha256(package),
        )

    def build_of(self, config: Config) -> Binary | None:
        """The build that was measured, where ``config`` is the certified default or among the fastest of this run."""
        if config in self._kept:
            return self._kept[config][1]
        return self._default[1] if self._default is not None and self._default[0] == config else None

    def kernel_sha256(self, package: bytes) -> str:
        return read(package, Trust.of_signer(self.workbench.signer)).manifest.kernel_sha256

    @spans.spanned("certify")
    def certify(self, package: bytes) -> Certificate:
        """The evidence for one package, compared in full at the gemm that is served. Raises VerificationFailed."""
        verification = persistent(
            lambda: self.measurer.verify(package, level="certificate", seed=self.seed, cancel=self.cancel)
        )
        certificate = Certificate(
            self.kernel_sha256(package),
            verification.passed,
            tuple(verification.tests),
            verification.reference,
            dict(self.workbench.device.environment),
            now(),
        )
        if not verification.passed:
            raise VerificationFailed(f"{self.gemm}: {wrong_message(verification)}")
        return certificate

    @spans.spanned("race")
    def race(
        self, entries: Mapping[str, bytes], baselines: Sequence[str], options: RaceOptions, *, confirm: bool = False
    ) -> RaceResult:
        """A ``Race`` on this workbench, fitted into its memory. Raises as it does."""
        return Race(self.measurer, options, self.cancel).fitting(entries, baselines, confirm=confirm)

    def built(self, build: Future[Binary]) -> Binary:
        """The build's result. Raises Cancelled, with the build given up, and whatever the build failed with."""
        while not self.workbench.ended([build]):
            if self.cancel.is_set():
                build.cancel()
                raise Cancelled(f"tuning of {self.gemm} was cancelled")
        return build.result()

    @spans.spanned("fallback")
    def certified_default(self, config: Config, *, last: bool = False) -> KernelRecord:
        """Build, certify, time, store and record a default as the fallback. ``last``: nothing is searched behind it."""
        build = self.workbench.build(self.gemm, config, urgent=True)
        binary = self.built(build)
        self._default = config, binary
        package = self.workbench.package(self.gemm, config, binary)
        certificate = self.certify(package)
        options = RaceOptions(self.regime, FALLBACK_SAMPLES, FALLBACK_SECONDS, "search", self.seed, warm_s=0.0)
        baselines = self.quick_baselines if last else self.ready_baselines
        samples = self.race({config.digest: package}, baselines, options).of(config.digest)
        self._offer_yardstick(config, package, samples)
        timings = Timings({self.regime: timing_summary(samples)}, str(config))
        kernel = self.store_kernel(config, binary, "fallback", certificate, timings)
        self.record_measured(config, binary, package, certificate, samples)  # what is stored gives the expected bits
        self.workbench.keep_built(self.gemm, config, build)
        return kernel

    def record_measured(
        self, config: Config, binary: Binary, package: bytes, certificate: Certificate, samples: SampleSet
    ) -> None:
        """Record a config that was certified and timed outside a search as measured, unless it is; its samples count
        as those of a search, which will not time it again."""
        store, key = self.workbench.store, self.key(config)
        known = store.candidate(key)
        if known is None or known.status is not Status.MEASURED:
            base = Candidate(
                self.gemm,
                self.workbench.device.key,
                self.regime,
                config,
                Status.MEASURED,
                attempt=store.begin_attempt(key),
                sample_sets=(replace(samples, reason="search"),),
                error=max((float(t["error"]) for t in certificate.tests if t.get("error") is not None), default=None),
            )
            store.add_candidate(self._hashed(base, binary, package))

    def store_kernel(
        self,
        config: Config,
        binary: Binary,
        role: Role,
        certificate: Certificate | None,
        timings: Timings,
        trials: int = 0,
    ) -> KernelRecord:
        """Package with the evidence, store the artifact, then the kernel that names it."""
        evidence = certificate.to_json() if certificate else None
        package = self.workbench.package(
            self.gemm, config, binary, certificate=evidence, timings=timings, selected=(self.regime, role)
        )
        return self.store_package(package, config, role, certificate, timings, trials)

    @spans.spanned("store")
    def store_package(
        self,
        package: bytes,
        config: Config,
        role: Role,
        certificate: Certificate | None,
        timings: Timings,
        trials: int = 0,
    ) -> KernelRecord:
        """Store an artifact with its evidence, then the kernel that names it."""
        record = KernelRecord(
            gemm=self.gemm,
            device=self.workbench.device,
            regime=self.regime,
            role=role,
            config=config,
            kernel_sha256=self.kernel_sha256(package),
            artifact_sha256=self.workbench.store.put_blob(package),
            artifact_bytes=len(package),
            certificate=certificate,
            timings=timings,
            trials=trials,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        return self.workbench.store.put_kernel(record)


def persistent(work: Callable[[], T]) -> T:
    """``work``, tried again where the measuring process died: outside the search a kill must not cost the job."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return work()
        except MeasurementCrashed:
            continue
    return work()


def failed(candidate: Candidate, error: TirgemmError) -> Candidate:
    """The candidate with what became of it. Raises an error that says nothing of it."""
    if error.outcome is None:
        raise error
    return candidate.with_(status=error.outcome, message=str(error))


def timing_summary(samples: SampleSet) -> Timing:
    """Median and, for each opponent of the same run, its median and the ratio opponent / ours."""
    ours = samples.median_us
    opponents = {name: SampleSet(raw).median_us for name, raw in samples.baselines.items() if raw}
    baselines = {name: BaselineTime(us, us / ours) for name, us in opponents.items()}
    return Timing(ours, len(samples.samples_us), baselines, samples.conditions)


def wrong_message(verification: Verification) -> str:
    """One sentence that names the first test that failed and by how much."""
    failed = next((t for t in verification.tests if not t.get("passed", True)), None)
    if failed is None:
        return "not verified"
    return f"test {failed.get('name', '?')} failed: {failed.get('message') or failed.get('error')}"
