"""Measuring a suite: every shape in every variant, beside its baselines, into a results file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from service import results
from service.results import ResultsFile, Row
from service.suites import Suite
from tirgemm.artifact import Trust, read
from tirgemm.config import Config
from tirgemm.errors import (
    BuildFailed,
    DoesNotFit,
    InvalidRequest,
    MeasurementFailed,
    TirgemmError,
    Unsupported,
    VerificationFailed,
)
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import MeasurementTimedOut
from tirgemm.tuning.tune import Budget, Tuning

if TYPE_CHECKING:
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.workbench import Workbench

VARIANTS = ("default", "tuned")
MIN_SAMPLES = 50
MEASURE_SECONDS = 3.0


class Bench:
    """Measures shapes on one workbench in one regime.

    ``baselines`` None is everything that can be measured beside ours on the device.
    """

    def __init__(
        self,
        workbench: Workbench,
        regime: str,
        *,
        baselines: Iterable[str] | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        families: Iterable[str] | None = None,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        self.workbench = workbench
        self.regime = regime
        self.budget = budget
        self.seed = seed
        self.families = None if families is None else tuple(families)
        self.on_event = on_event
        offered = self.measurer.baselines()
        self.baselines = offered if baselines is None else tuple(baselines)
        unknown = [name for name in self.baselines if name not in offered]
        if unknown:
            raise InvalidRequest(
                f"baseline {unknown[0]!r} cannot be measured on {workbench.device.name} here;"
                f" baselines are {', '.join(offered) or 'none'}"
            )

    @property
    def measurer(self) -> Measurer:
        if self.workbench.measurer is None:
            raise InvalidRequest(f"device {self.workbench.device.name} is only named; nothing can be measured on it")
        return self.workbench.measurer

    def run(
        self, suite: Suite, variants: Iterable[str], file: ResultsFile, on_row: Callable[[Row, bool], None]
    ) -> None:
        """Measure what ``file`` does not hold yet. ``on_row(row, kept)`` sees every row; each is saved at once."""
        chosen = tuple(variants)
        for variant in chosen:
            if variant not in VARIANTS:
                raise InvalidRequest(f"variant {variant!r} is unknown; variants are {', '.join(VARIANTS)}")
        for gemm in suite.gemms:
            for variant in chosen:
                kept = self._kept(gemm, variant, file)
                row = kept or self._row(gemm, variant)
                if kept is None:
                    file.put(row)
                on_row(row, kept is not None)
        file.arrange(suite.gemms, VARIANTS)

    def _kept(self, gemm: Gemm, variant: str, file: ResultsFile) -> Row | None:
        """The row to keep: of the config that would be measured; a tuned one is whatever tuning found then."""
        if variant != "default":
            return file.find(gemm, variant)
        try:
            return file.find(gemm, variant, self._tuning(gemm).default()[1].digest)
        except TirgemmError:
            return None

    def _row(self, gemm: Gemm, variant: str) -> Row:
        config: Config | None = None
        try:
            tuning = self._tuning(gemm)
            config = tuning.default()[1]
            default = self._package(gemm, config)
            if variant == "default":
                return self._measured(gemm, config, variant, default, {})
            record = tuning.run()
            config = record.config
            package = self.workbench.store.get_blob(record.artifact_sha256)
            return self._measured(gemm, config, variant, package, {"default": default})
        except (Unsupported, DoesNotFit) as error:
            return results.unmeasured_row(gemm, None, variant, "skipped", str(error))
        except (BuildFailed, VerificationFailed, MeasurementFailed) as error:
            return results.unmeasured_row(gemm, config, variant, _status(error), str(error))

    def _measured(self, gemm: Gemm, config: Config, variant: str, package: bytes, against: dict[str, bytes]) -> Row:
        found = self.measurer.verify(package, level="candidate", seed=self.seed)
        if not found.passed:
            raise VerificationFailed(f"the result of {config} is {found.error} times its bound away from the reference")
        samples = self.measurer.time(
            package, self.regime, against=against, baselines=self.baselines, min_samples=MIN_SAMPLES,
            budget_s=MEASURE_SECONDS,
        )  # fmt: skip
        launch = read(package, Trust.of(self.workbench.signer.public)).manifest.launch
        return results.measured_row(
            gemm, config, variant, samples, error=found.error, workspace_bytes=launch.workspace_bytes(gemm.m_max),
            artifact_sha256=hashlib.sha256(package).hexdigest(),
        )  # fmt: skip

    def _tuning(self, gemm: Gemm) -> Tuning:
        return Tuning(
            gemm,
            self.workbench,
            self.regime,
            self.budget,
            seed=self.seed,
            families=self.families,
            on_event=self.on_event,
        )

    def _package(self, gemm: Gemm, config: Config) -> bytes:
        return self.workbench.package(gemm, config, self.workbench.build(gemm, config).result())


def _status(error: TirgemmError) -> str:
    """The status of a candidate that ended so."""
    if isinstance(error, BuildFailed):
        return "build_failed"
    if isinstance(error, VerificationFailed):
        return "wrong"
    return "timed_out" if isinstance(error, MeasurementTimedOut) else "crashed"
