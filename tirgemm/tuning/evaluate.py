"""From a built config to a stored record: package, verify, time, commit. What is measured is what would be served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tirgemm.artifact import Trust, read
from tirgemm.config import Config
from tirgemm.errors import BuildFailed, Cancelled, DeviceUnavailable, VerificationFailed
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut, Measurer, Verification
from tirgemm.tuning.measure.measurer import SLOW_BASELINES
from tirgemm.tuning.records import Candidate, CandidateKey, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.search import Proposal
from tirgemm.tuning.space_trace import trace_of
from tirgemm.tuning.workbench import Workbench

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary

T = TypeVar("T")

MAX_ATTEMPTS = 2
SELECTION_SAMPLES = 50
SELECTION_SECONDS = 2.0


class Evaluator:
    """Evaluates configs of one problem on one workbench in one regime."""

    def __init__(self, gemm: Gemm, workbench: Workbench, regime: str, *, seed: int, cancel: threading.Event) -> None:
        self.gemm = gemm
        self.workbench = workbench
        self.regime = regime
        self.seed = seed
        self.cancel = cancel

    @property
    def measurer(self) -> Measurer:
        if self.workbench.measurer is None:
            raise DeviceUnavailable(f"device {self.workbench.device.name} is only named; nothing can be measured on it")
        return self.workbench.measurer

    @property
    def baselines(self) -> tuple[str, ...]:
        """What every answer on this device is measured against: the installed ones that need no tuning themselves."""
        return tuple(name for name in self.measurer.baselines() if name not in SLOW_BASELINES)

    def key(self, config: Config) -> CandidateKey:
        return CandidateKey(self.gemm, self.workbench.device.key, self.regime, config.digest)

    def candidate(self, proposal: Proposal, build: Future[Binary]) -> Candidate:
        """Verify and time one finished build and commit its record, whatever its status.

        The attempt is counted before anything runs; a config whose attempts were lost ``MAX_ATTEMPTS`` times, each
        time with the whole process, is recorded as crashed without running.
        """
        attempt = self.workbench.store.begin_attempt(self.key(proposal.config))
        base = Candidate(
            self.gemm, self.workbench.device.key, self.regime, proposal.config, Status.CRASHED,
            trace=proposal.trace_json, attempt=attempt, predicted_us=proposal.predicted_us,
        )  # fmt: skip
        if attempt > MAX_ATTEMPTS:
            found = base.with_(message=f"the process died during each of the {attempt - 1} attempts before this one")
        else:
            found = self._evaluate(base, build)
        self.workbench.store.add_candidate(found)
        return found

    def _evaluate(self, base: Candidate, build: Future[Binary]) -> Candidate:
        try:
            binary = build.result()
        except BuildFailed as error:
            return base.with_(status=Status.BUILD_FAILED, message=str(error))
        package = self.workbench.package(self.gemm, base.config, binary)
        built = self._hashed(base, binary, package)
        try:
            verification, samples = self.measurer.evaluate(package, self.regime, seed=self.seed, cancel=self.cancel)
        except MeasurementTimedOut as error:
            return built.with_(status=Status.TIMED_OUT, message=str(error))
        except MeasurementCrashed as error:
            return built.with_(status=Status.CRASHED, message=str(error))
        if not verification.passed or samples is None:
            return built.with_(status=Status.WRONG, error=verification.error, message=wrong_message(verification))
        return built.with_(status=Status.MEASURED, error=verification.error, sample_sets=(samples,))

    def _hashed(self, base: Candidate, binary: Binary, package: bytes) -> Candidate:
        return base.with_(
            source_sha256=binary.source_sha256,
            binary_sha256=binary.binary_sha256,
            kernel_sha256=self.kernel_sha256(package),
        )

    def kernel_sha256(self, package: bytes) -> str:
        return read(package, Trust.of(self.workbench.signer.public)).manifest.kernel_sha256

    def certify(self, package: bytes) -> Certificate:
        """The evidence for one package, compared in full at the gemm that is served. Raises VerificationFailed."""
        found = persistent(
            lambda: self.measurer.verify(package, level="certificate", seed=self.seed, cancel=self.cancel)
        )
        certificate = Certificate(
            self.kernel_sha256(package), found.passed, tuple(found.tests), found.reference,
            dict(self.workbench.device.environment), datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        if not found.passed:
            raise VerificationFailed(f"{self.gemm}: {wrong_message(found)}")
        return certificate

    def time(self, package: bytes, regime: str, **options: Any) -> SampleSet:
        """Time a package beside every baseline; options as ``Measurer.time`` takes them."""
        return persistent(
            lambda: self.measurer.time(package, regime, baselines=self.baselines, cancel=self.cancel, **options)
        )

    def certified_default(self, config: Config) -> KernelRecord:
        """Build, certify, time and store a family's default as the fallback, and record it as a candidate."""
        build = self.workbench.build(self.gemm, config)
        while not build.done():
            if self.cancel.wait(0.02):
                build.cancel()
                raise Cancelled(f"tuning of {self.gemm} was cancelled")
        binary = build.result()
        package = self.workbench.package(self.gemm, config, binary)
        certificate = self.certify(package)
        samples = self.time(package, self.regime, reason="search", min_samples=10, budget_s=0.5)
        key = self.key(config)
        if self.workbench.store.candidate(key) is None:
            attempt = self.workbench.store.begin_attempt(key)
            base = Candidate(
                self.gemm, self.workbench.device.key, self.regime, config, Status.MEASURED, attempt=attempt,
                trace=trace_of(self.gemm, self.workbench.device, config), sample_sets=(samples,),
                error=max((float(t["error"]) for t in certificate.tests if t.get("error") is not None), default=None),
            )  # fmt: skip
            self.workbench.store.add_candidate(self._hashed(base, binary, package))
        timings = {self.regime: timing_summary(samples), "default": {"config": str(config)}}
        return self.store_kernel(config, binary, "fallback", certificate, timings)

    def store_kernel(
        self,
        config: Config,
        binary: Binary,
        role: Literal["fallback", "tuned", "unverified"],
        certificate: Certificate | None,
        timings: dict[str, Any],
        trials: int = 0,
    ) -> KernelRecord:
        """Package with the evidence, store the artifact, then the kernel that names it."""
        evidence = certificate.to_json() if certificate else None
        package = self.workbench.package(self.gemm, config, binary, certificate=evidence, timings=timings)
        record = KernelRecord(
            gemm=self.gemm, device=self.workbench.device, regime=self.regime, role=role, config=config,
            kernel_sha256=self.kernel_sha256(package), artifact_sha256=self.workbench.store.put_blob(package),
            artifact_bytes=len(package), certificate=certificate, timings=timings, trials=trials,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip
        return self.workbench.store.put_kernel(record)


def persistent(work: Callable[[], T]) -> T:
    """``work``, tried again where the measuring process died: outside the search a kill must not cost the job."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return work()
        except MeasurementCrashed:
            continue
    return work()


def timing_summary(samples: SampleSet) -> dict[str, Any]:
    """Median and, for each opponent of the same run, its median and the ratio opponent / ours."""
    ours = samples.median_us
    opponents = {name: SampleSet(raw).median_us for name, raw in samples.baselines.items() if raw}
    return {
        "median_us": ours,
        "samples": len(samples.samples_us),
        "baselines": {name: {"median_us": us, "ratio": us / ours} for name, us in opponents.items()},
        "conditions": samples.conditions,
    }


def wrong_message(verification: Verification) -> str:
    """One sentence that names the first test that failed and by how much."""
    failed = next((t for t in verification.tests if not t.get("passed", True)), None)
    if failed is None:
        return "not verified"
    return f"test {failed.get('name', '?')} failed: {failed.get('message') or failed.get('error')}"
