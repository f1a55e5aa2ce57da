"""Contests: verified kernels of one problem raced beside the baselines of a benchmark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tirgemm.artifact import Manifest, Trust, read
from tirgemm.bench import results
from tirgemm.bench.results import Row
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError, VerificationFailed
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.build.binary import compiled_source
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.measure.race import Race, RaceResult
from tirgemm.tuning.measure.requests import RaceOptions

MIN_SAMPLES = {"sustained": 24, "isolated": 50}
# Of steps that share their operands, of which there are a dozen.
STEP_SAMPLES = 24
# Below this many operations the GPU's clock settles within the usual time; larger problems get twice as long.
LARGE_FLOPS = 2e11


@dataclass(frozen=True)
class Entrant:
    """A config that takes part, with the package that is verified and timed."""

    config: Config
    package: bytes

    @property
    def name(self) -> str:
        """What it is called in a race."""
        return self.config.digest

    @property
    def sha256(self) -> str:
        """Of the artifact."""
        return hashlib.sha256(self.package).hexdigest()

    def manifest(self, trust: Trust) -> Manifest:
        """The package's. Raises ArtifactError."""
        return read(self.package, trust).manifest

    def measured(self, gemm: Gemm, error: float, trust: Trust) -> results.MeasuredKernel:
        """What a row says of it, whose result is ``error`` times its bound away from the reference."""
        manifest = self.manifest(trust)
        source = manifest.sources[compiled_source(manifest.sources)]
        return results.MeasuredKernel(error, manifest.launch.workspace_bytes(gemm.m_max), self.sha256, source)

    def is_same_kernel(self, other: Entrant, trust: Trust) -> bool:
        """Whether machine code and launch are the other's, whatever the configs are called."""
        mine, theirs = self.manifest(trust), other.manifest(trust)
        return (mine.binary_sha256, mine.launch) == (theirs.binary_sha256, theirs.launch)


def chosen_baselines(measurer: Measurer, device: Device, names: Iterable[str]) -> tuple[str, ...]:
    """The names of baselines, each of which can be measured here. Raises InvalidRequest."""
    chosen, offered = tuple(names), measurer.baselines()
    unknown = [name for name in chosen if name not in offered]
    if unknown:
        raise InvalidRequest(
            f"baseline {unknown[0]!r} cannot be measured on {device.name} here;"
            f" baselines are {', '.join(offered) or 'none'}"
        )
    return chosen


@dataclass
class Contest:
    """Verification and races on one measurer; remembers what it has verified."""

    measurer: Measurer
    baselines: tuple[str, ...]
    seconds: float
    seed: int = 0
    _errors: dict[str, float] = field(default_factory=dict)

    def verify(self, entrant: Entrant) -> float:
        """The error over its bound. Raises VerificationFailed, MeasurementFailed."""
        known = self._errors.get(entrant.sha256)
        if known is not None:
            return known
        verification = self.measurer.verify(entrant.package, level="candidate", seed=self.seed)
        if not verification.passed:
            raise VerificationFailed(
                f"the result of {entrant.config} is {verification.error} times its bound away from the reference"
            )
        self._errors[entrant.sha256] = verification.error
        return verification.error

    def choose(self, gemm: Gemm, entrants: Sequence[Entrant], regime: Regime) -> RaceResult:
        """The entrants raced by themselves, for the choice of one. Raises DoesNotFit."""
        return Race(self.measurer, self._options(gemm, regime, self.seed)).run(_packages(entrants), ())

    def report(
        self,
        gemm: Gemm,
        entrants: Sequence[Entrant],
        regime: Regime,
        races: int = 1,
        rivals: Mapping[str, Entrant] | None = None,
    ) -> list[RaceResult]:
        """The entrants raced beside the baselines, each time with other operands and turns, and others than in a
        choice. ``rivals`` are kernels of ours that stand among the baselines, by name.

        Raises DoesNotFit.
        """
        options = [self._options(gemm, regime, self.seed + 1 + number) for number in range(races)]
        beside = {name: rival.package for name, rival in (rivals or {}).items()}
        packages = _packages(entrants) | beside
        results = [Race(self.measurer, one).confirmed(packages, self.baselines) for one in options]
        return [_with_baselines(result, tuple(beside)) for result in results]

    def on_same_operands(self, entrants: Mapping[str, Entrant], regime: Regime, races: int = 1) -> list[RaceResult]:
        """Steps that differ in one thing, by their names, beside the baselines; each race is one. Raises DoesNotFit."""
        packages = {name: entrant.package for name, entrant in entrants.items()}
        options = [
            RaceOptions(regime, STEP_SAMPLES, self.seconds, seed=self.seed + number, shared=True)
            for number in range(races)
        ]
        return [
            Race(self.measurer, one).run(packages, self.baselines) if packages else RaceResult({}) for one in options
        ]

    def _options(self, gemm: Gemm, regime: Regime, seed: int) -> RaceOptions:
        seconds = self.seconds / 2 * (2 if gemm.flops > LARGE_FLOPS else 1)
        return RaceOptions(regime, MIN_SAMPLES[regime], seconds, seed=seed)


def _with_baselines(result: RaceResult, names: Sequence[str]) -> RaceResult:
    """The result with the entries ``names`` among the baselines of the others."""
    beside = {name: result.samples[name].samples_us for name in names if name in result.samples}
    samples = {
        entry: replace(taken, baselines=taken.baselines | beside)
        for entry, taken in result.samples.items()
        if entry not in names
    }
    return RaceResult(samples, {entry: fault for entry, fault in result.failed.items() if entry not in names})


def failed_row(gemm: Gemm, config: Config | None, variant: str, error: TirgemmError) -> Row:
    """The row of a variant that an error ended: skipped where that says nothing of the config."""
    return results.unmeasured_row(gemm, config, variant, error.outcome or "skipped", str(error))


def _packages(entrants: Sequence[Entrant]) -> dict[str, bytes]:
    return {entrant.name: entrant.package for entrant in entrants}
