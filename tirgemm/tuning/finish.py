"""The last stages of tuning: measure the best few again, choose, certify, measure the other regime, package, store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.config import Config
from tirgemm.errors import Cancelled, MeasurementFailed, TirgemmError, VerificationFailed
from tirgemm.families import family_named
from tirgemm.gemm import REGIMES
from tirgemm.tuning.evaluate import SELECTION_SAMPLES, SELECTION_SECONDS, persistent, timing_summary
from tirgemm.tuning.measure import MeasurementTimedOut
from tirgemm.tuning.records import Candidate, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.selection import Choice, choose

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary
    from tirgemm.tuning.tune import Tuning

FINALISTS = 4
# A smaller gap to the default is believed only after a run with the buffers swapped (docs: a number names its regime).
SMALL_GAP = 0.03


@dataclass(frozen=True)
class Finalist:
    """A config that stands for selection, with its build and the package that is measured."""

    config: Config
    binary: Binary
    package: bytes


def finish(tuning: Tuning, summary: dict[str, Any]) -> KernelRecord:
    """Select among the best few and the default, certify the choice and store it as the answer.

    A finalist that fails its certificate is recorded as wrong and the next best is chosen. Raises VerificationFailed
    where none is left, Cancelled.
    """
    finalists = _finalists(tuning)
    default = finalists[0]
    samples = _measured_again(tuning, finalists)
    swapped = False
    left = list(range(len(finalists)))
    while left:
        choice = choose([samples[i] for i in left], [_rank(tuning, finalists[i].config) for i in left])
        if finalists[left[choice.index]] is not default and choice.ratio < 1 + SMALL_GAP and not swapped:
            again = _measured_again(tuning, finalists, swap=True)
            samples = [_joined(first, second) for first, second in zip(samples, again, strict=True)]
            swapped = True
            continue
        index = left[choice.index]
        winner = finalists[index]
        try:
            certificate = tuning.evaluator.certify(winner.package)
        except (VerificationFailed, MeasurementFailed) as error:
            _mark(tuning, winner, error)
            left.remove(index)
            continue
        timings = _timings(tuning, winner, default, samples[index], choice, summary)
        return _store(tuning, winner, certificate, timings, summary)
    raise VerificationFailed(f"none of the {len(finalists)} fastest candidates of {tuning.gemm} passed its certificate")


def _finalists(tuning: Tuning) -> list[Finalist]:
    """The default first, then the fastest measured candidates, rebuilt."""
    names = {f.name for f in tuning.families}
    measured = [c for c in tuning.store.candidates(tuning.gemm, tuning.device.key, tuning.regime)
                if c.status is Status.MEASURED and c.search_us is not None and c.config.family in names]  # fmt: skip
    measured.sort(key=lambda c: c.search_us or 0.0)
    defaults = [f.default(tuning.gemm, tuning.device, tuning.regime) for f in tuning.families]
    best_default = next((c.config for c in measured if c.config in defaults), None)
    configs: list[Config] = [] if best_default is None else [best_default]
    configs += [c.config for c in measured if c.config != best_default][: FINALISTS - len(configs) + 1]
    if not configs:
        raise VerificationFailed(f"no candidate of {tuning.gemm} on {tuning.device.name} was measured")
    builds = [tuning.workbench.build(tuning.gemm, config) for config in configs]
    binaries = [tuning._wait(build) for build in builds]
    return [
        Finalist(config, binary, tuning.workbench.package(tuning.gemm, config, binary))
        for config, binary in zip(configs, binaries, strict=True)
    ]


def _measured_again(tuning: Tuning, finalists: list[Finalist], *, swap: bool = False) -> list[SampleSet]:
    """One interleaved run over all finalists and the baselines; each finalist's samples become a new sample set."""
    first, *rest = finalists
    run = tuning.evaluator.time(
        first.package,
        tuning.regime,
        against={f.config.digest: f.package for f in rest},
        min_samples=SELECTION_SAMPLES,
        budget_s=SELECTION_SECONDS,
        swap=swap,
    )
    named = {name: run.baselines[name] for name in tuning.evaluator.baselines if name in run.baselines}
    own = [run.samples_us, *(run.baselines[f.config.digest] for f in rest)]
    sets = [
        SampleSet(samples, "selection", named | ({"default": own[0]} if i else {}), run.conditions)
        for i, samples in enumerate(own)
    ]
    for finalist, samples in zip(finalists, sets, strict=True):
        tuning.store.add_samples(tuning.evaluator.key(finalist.config), samples)
    return sets


def _joined(first: SampleSet, second: SampleSet) -> SampleSet:
    """Two runs' samples as one set, under the second's conditions."""
    baselines = {name: first.baselines.get(name, ()) + raw for name, raw in second.baselines.items()}
    return SampleSet(first.samples_us + second.samples_us, first.reason, baselines, second.conditions)


def _rank(tuning: Tuning, config: Config) -> tuple[int, ...]:
    """Smaller is simpler: the order of the families, then of each knob's choices."""
    family = family_named(config.family)
    order = [f.name for f in tuning.families].index(config.family)
    return (order, *family.space(tuning.gemm, tuning.device).indices(config).values())


def _mark(tuning: Tuning, finalist: Finalist, error: TirgemmError) -> None:
    """Record what its certificate made of a finalist."""
    status = Status.WRONG if isinstance(error, VerificationFailed) else Status.CRASHED
    status = Status.TIMED_OUT if isinstance(error, MeasurementTimedOut) else status
    known = tuning.store.candidate(tuning.evaluator.key(finalist.config))
    base = known or Candidate(tuning.gemm, tuning.device.key, tuning.regime, finalist.config, status)
    tuning.store.add_candidate(base.with_(status=status, message=str(error)))


def _timings(
    tuning: Tuning, winner: Finalist, default: Finalist, samples: SampleSet, choice: Choice, summary: dict[str, Any]
) -> dict[str, Any]:
    """Both regimes' figures of the winner, the default's, and why it was chosen."""
    mine = samples if "default" in samples.baselines else _with_default(samples)
    timings: dict[str, Any] = {
        tuning.regime: timing_summary(mine),
        "default": {"config": str(default.config)},
        "selection": {"reason": choice.reason, "ratio_low": choice.ratio_low},
        "search": summary,
    }
    if tuning.device.kind == "cuda":
        timings["stream"] = _stream(tuning.evaluator.measurer.stream)
    other = next(regime for regime in REGIMES if regime != tuning.regime)
    try:
        against = {} if winner is default else {"default": default.package}
        found = tuning.evaluator.time(
            winner.package, other, reason="other_regime", against=against, min_samples=SELECTION_SAMPLES,
            budget_s=SELECTION_SECONDS / 2,
        )  # fmt: skip
    except Cancelled:
        raise
    except TirgemmError as error:
        # The other regime's figure is for information: failing to take it must not lose a certified kernel.
        timings[other] = {"error": str(error)}
        return timings
    tuning.store.add_samples(tuning.evaluator.key(winner.config), found)
    timings[other] = timing_summary(found if against else _with_default(found))
    return timings


def _stream(measure: Callable[[], SampleSet]) -> dict[str, Any]:
    """What ``measure`` finds of the bandwidth of reading alone, beside the selection: a ceiling, for information as the
    other regime is."""
    try:
        found = persistent(measure)
    except Cancelled:
        raise
    except TirgemmError as error:
        return {"error": str(error)}
    nbytes, median = int(found.conditions["bytes"]), found.median_us
    return {
        "bytes": nbytes, "median_us": median, "samples": len(found.samples_us), "read_gbps": nbytes / median / 1e3,
        "at": found.conditions["at"],
    }  # fmt: skip


def _with_default(samples: SampleSet) -> SampleSet:
    """The default's own samples, named as the default's too, so that its ratio reads 1."""
    baselines = samples.baselines | {"default": samples.samples_us}
    return SampleSet(samples.samples_us, samples.reason, baselines, samples.conditions)


def _store(
    tuning: Tuning, winner: Finalist, certificate: Certificate, timings: dict[str, Any], summary: dict[str, Any]
) -> KernelRecord:
    record = tuning.evaluator.store_kernel(
        winner.config, winner.binary, "tuned", certificate, timings, trials=int(summary["trials"])
    )
    tuning.emit("selected", kernel=record.id, config=str(winner.config), timings=timings)
    return record
