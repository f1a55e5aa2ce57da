"""A contest: the kernels of one problem and the baselines, interleaved in one run, so that all share whatever happens.

Every package is verified first, once for each artifact. A second run with the buffers swapped is taken where a gap is
too small to be believed without.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tirgemm.config import Config
from tirgemm.errors import MeasurementFailed, VerificationFailed
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.records import SampleSet

# A gap that is smaller is believed only after a run with the buffers swapped, where the calls of a run, about so many
# of each, take no longer than so much.
SMALL_GAP, SWAP_CALLS, SWAP_SECONDS = 0.03, 72, 3.0
MIN_SAMPLES = {"sustained": 24, "isolated": 50}
# Below this many operations the GPU's clock settles within the usual time; larger problems get twice as long.
LARGE_FLOPS = 2e11


@dataclass(frozen=True)
class Entrant:
    """A config that takes part, with the package that is verified and timed."""

    config: Config
    package: bytes

    @property
    def sha256(self) -> str:
        """Of the artifact."""
        return hashlib.sha256(self.package).hexdigest()


@dataclass
class Contest:
    """Verification and timing on one measurer; remembers what it has verified."""

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
        found = self.measurer.verify(entrant.package, level="candidate", seed=self.seed)
        if not found.passed:
            raise VerificationFailed(
                f"the result of {entrant.config} is {found.error} times its bound away from the reference"
            )
        self._errors[entrant.sha256] = found.error
        return found.error

    def run(self, gemm: Gemm, entrants: Sequence[Entrant], regime: str) -> dict[Config, SampleSet]:
        """Samples of every entrant; beside each stand the baselines' and, beside all but the first, those of the first.

        A run that dies is tried once more, then with the first entrant alone, then with the first baseline alone; what
        was left out is missing, and the conditions say why (``left_out``). Raises MeasurementFailed, DoesNotFit.
        """
        whole = entrants, self.baselines
        failed: MeasurementFailed | None = None
        for attempt, (some, baselines) in enumerate(
            (whole, whole, (entrants[:1], self.baselines), (entrants, self.baselines[:1]))
        ):
            if attempt > 1 and (some, baselines) == whole:
                continue
            try:
                found = self._believed(gemm, some, baselines, regime)
            except MeasurementFailed as error:
                failed = failed or error
                continue
            return found if attempt < 2 else _with_reason(found, str(failed))
        assert failed is not None
        raise failed

    def _believed(
        self, gemm: Gemm, entrants: Sequence[Entrant], baselines: tuple[str, ...], regime: str
    ) -> dict[Config, SampleSet]:
        found = self._together(gemm, entrants, baselines, regime, swap=False)
        if _close(found) and _call_seconds(found) * SWAP_CALLS < SWAP_SECONDS:
            again = self._together(gemm, entrants, baselines, regime, swap=True)
            found = {config: _joined(samples, again[config]) for config, samples in found.items()}
        return found

    def _together(
        self, gemm: Gemm, entrants: Sequence[Entrant], baselines: tuple[str, ...], regime: str, *, swap: bool
    ) -> dict[Config, SampleSet]:
        first, *rest = entrants
        run = self.measurer.time(
            first.package, regime, against={entrant.config.digest: entrant.package for entrant in rest},
            baselines=baselines, min_samples=MIN_SAMPLES[regime], swap=swap, seed=self.seed,
            budget_s=self.seconds / 2 * (2 if gemm.flops > LARGE_FLOPS else 1),
        )  # fmt: skip
        beside = {name: run.baselines[name] for name in baselines if name in run.baselines}
        found = {first.config: SampleSet(run.samples_us, run.reason, beside, run.conditions)}
        for entrant in rest:
            samples = run.baselines[entrant.config.digest]
            others = beside | {"default": run.samples_us}
            found[entrant.config] = SampleSet(samples, run.reason, others, run.conditions)
        return found


def _with_reason(found: Mapping[Config, SampleSet], reason: str) -> dict[Config, SampleSet]:
    """The same samples; their conditions say why something is missing beside them."""
    return {
        config: replace(samples, conditions=samples.conditions | {"left_out": reason})
        for config, samples in found.items()
    }


def _close(found: Mapping[Config, SampleSet]) -> bool:
    """Whether the fastest entrant is near another, or near a baseline."""
    fastest = min(found, key=lambda config: found[config].median_us)
    best = found[fastest]
    others = [samples.median_us for config, samples in found.items() if config != fastest]
    others += [statistics.median(raw) for raw in best.baselines.values() if raw]
    return any(abs(other / best.median_us - 1) < SMALL_GAP for other in others)


def _call_seconds(found: Mapping[Config, SampleSet]) -> float:
    """One call of every contender."""
    first = next(iter(found.values()))
    us = sum(samples.median_us for samples in found.values())
    return (us + sum(statistics.median(raw) for raw in first.baselines.values() if raw)) / 1e6


def _joined(first: SampleSet, second: SampleSet) -> SampleSet:
    """Two runs' samples as one set; the conditions are the first's, but for what either throttled."""
    baselines = {name: raw + second.baselines.get(name, ()) for name, raw in first.baselines.items()}
    throttled = sorted({*first.conditions.get("throttled", ()), *second.conditions.get("throttled", ())})
    conditions = first.conditions | {"throttled": throttled, "swapped": True}
    return SampleSet(first.samples_us + second.samples_us, first.reason, baselines, conditions)
