"""Final stages of tuning: selection race, certificate, reporting race, packaging."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tirgemm.config import Config
from tirgemm.errors import Cancelled, DoesNotFit, TirgemmError, VerificationFailed
from tirgemm.events import FinalistsRaced, KernelSelected, Phase, RaceEntry
from tirgemm.families import family_named
from tirgemm.families.choice import defaults_of
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.timings import NotTimed, SearchSummary, SelectionReason, StreamTiming, Timings
from tirgemm.tuning.evaluate import failed, persistent, timing_summary
from tirgemm.tuning.intervals import CONFIDENCE
from tirgemm.tuning.measure.race import SMALL_GAP, RaceResult, joined
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Candidate, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.selection import (
    DEFAULT,
    ONLY_THE_DEFAULT,
    THE_ONLY,
    Choice,
    choose,
    finalists_of,
    ratio_low,
    ratio_to_default,
)
from tirgemm.tuning.tuning_task import TuningTask

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

SAMPLES = 50
# Of the races that report, twice where a gap is small.
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class FinishPlan:
    """How long the last stages may take.

    ``finalists`` beside the default and what is served; ``samples`` and seconds of the race that chooses and of the one
    that reports; ``baselines`` beside the report: all, those beside a quick answer, or none. ``confirms``: where a gap
    is small both are run again with the buffers swapped. ``untimed``: why the other regime is not measured; empty where
    it is, in ``other_regime_s``.
    """

    finalists: int = 6
    samples: int = SAMPLES
    selection_s: float = 1.0
    report_s: float = REPORT_SECONDS
    baselines: Literal["all", "quick", "none"] = "all"
    confirms: bool = True
    other_regime_s: float = 1.0
    untimed: str = ""


FULL = FinishPlan()
# After a quick search, which is to take as long as a certificate does.
QUICK = FinishPlan(
    3, 20, 0.5, 0.25, "quick", confirms=False, untimed="not measured: effort quick takes no time for the other regime"
)
# After a search that was stopped: its user waits.
STOPPED = FinishPlan(1, 10, 0.5, 0.5, "none", confirms=False, untimed="not measured: the search was stopped")


@dataclass(frozen=True)
class Finalist:
    """A config that stands for selection, with its build and the package that is measured."""

    config: Config
    binary: Binary
    package: bytes

    @property
    def name(self) -> str:
        """What it is called in a race."""
        return self.config.digest

    @property
    def kernel(self) -> object:
        """What makes two configs one kernel: the machine code and how it is launched."""
        return self.binary.binary_sha256, self.binary.launch


def finish(tuning: TuningTask, summary: SearchSummary, plan: FinishPlan = FULL) -> KernelRecord:
    """Select among the best few, the default and the kernel that is served, certify the choice and store it as the
    answer.

    One race chooses; the figures that are stored are those of a second one, between the choice, the default and the
    baselines. Where that one shows the default to be faster the default is the answer (``certified``). A finalist that
    fails in a race or in its certificate is recorded so, and the next best is chosen. After a search that was stopped
    the plan is ``STOPPED``, whatever was given. Raises VerificationFailed or MeasurementFailed where none is left,
    Cancelled.
    """
    plan = _plan(tuning, plan)
    selection = Selection(tuning, plan)
    while selection.left:
        winner, choice = selection.choose()
        try:
            evidence = certified(tuning, winner, selection.default, plan)
            winner, reason = evidence.finalist, evidence.replaced or choice.reason
            timings = reported_timings(tuning, selection.default, evidence, reason, summary, plan)
            return store_selected(tuning, winner, evidence.certificate, timings, summary)
        except TirgemmError as error:
            mark_failed(tuning, winner.config, error)
            selection.left.remove(winner)
    count = len(selection.finalists)
    raise VerificationFailed(f"none of the {count} fastest candidates of {tuning.gemm} passed its certificate")


@dataclass(frozen=True)
class Evidence:
    """That a finalist is right, and the samples that its figures are of. ``replaced``: why it is the default instead of
    what was chosen, where it is."""

    finalist: Finalist
    certificate: Certificate
    report: SampleSet
    replaced: str = ""


def certified(
    tuning: TuningTask, winner: Finalist, default: Finalist | None, plan: FinishPlan, tolerance: float = 0.0
) -> Evidence:
    """The certificate of a kernel and its samples beside the default's and the baselines'. Where these show with
    confidence that the default is faster, by more than ``tolerance``, and it does not fail: the default's certificate
    and its samples of a further race. Raises what ends the winner."""
    tuning.enter(Phase.CERTIFYING)
    certificate = tuning.evaluator.certify(winner.package)
    # Samples that did not choose it: neither the operands nor the order of the turns are those of a race that may have.
    plan, seed = _plan(tuning, plan), tuning.seed + (2 if winner is default else 1)
    options = RaceOptions(tuning.regime, plan.samples, plan.report_s, "report", seed)
    report = _beside_default(tuning, winner, default, options, plan, confirm=plan.confirms)
    evidence, theirs = Evidence(winner, certificate, report), report.baselines.get(DEFAULT)
    low = ratio_low(report.samples_us, theirs) if theirs else 1.0
    if default is None or low <= 1.0 + tolerance or default.config not in tuning.measured():
        return evidence
    words = f"the default, at least {low:.3f} times as fast as what was chosen, with {CONFIDENCE:.0%} confidence"
    try:
        return replace(certified(tuning, default, default, plan), replaced=words)
    except TirgemmError as error:
        mark_failed(tuning, default.config, error)
        return evidence


class Selection:
    """The race that chooses among the ``finalists``, and those of them that are ``left``."""

    def __init__(self, tuning: TuningTask, plan: FinishPlan) -> None:
        self.tuning = tuning
        self.plan = plan
        served = _served(tuning)
        defaults = defaults_of(tuning.families, tuning.gemm, tuning.device, tuning.regime).values()
        offered = _finalists(tuning, defaults, served, plan.finalists)
        answers = {finalist.kernel for finalist in offered if finalist.config == served}
        self.finalists = _distinct(offered)
        self._default = next((finalist for finalist in self.finalists if finalist.config in defaults), None)
        self.served = next((finalist for finalist in self.finalists if finalist.kernel in answers), None)
        self.alone = len(self.finalists) == 1
        words = "the only one measured" if self.alone else f"among the best {len(self.finalists)}"
        tuning.enter(Phase.CHOOSING, words)
        self._result = RaceResult({}) if self.alone else _selection(tuning, self.finalists, self._default, plan)
        self._swapped = not plan.confirms or self._result.shared
        self.left = self._running(self.finalists)

    def choose(self) -> tuple[Finalist, Choice]:
        """The best of those that are left, and why; a small lead is raced again with the buffers swapped, once. Raises
        VerificationFailed where none is left."""
        while self.left:
            choice = self._choice()
            winner = self.left[choice.index]
            stays = winner is (self.served if self.served in self.left else self.default)
            if stays or choice.lead >= 1 + SMALL_GAP or self._swapped:
                return winner, choice
            self._swapped = True
            try:
                again = _selection(self.tuning, self.left, self.default, self.plan, swap=True)
            except DoesNotFit:  # where the first race has left less memory
                return winner, choice
            self._result = joined(self._result, again)
            self.left = self._running(self.left)
        raise VerificationFailed(f"none of the {len(self.finalists)} fastest candidates of {self.tuning.gemm} runs")

    @property
    def default(self) -> Finalist | None:
        """The best of the families' defaults that were measured; None where none was, or it has failed since."""
        return self._default if self._default in self.left else None

    @property
    def samples(self) -> dict[Config, SampleSet]:
        """Those of what runs, of one race; empty where there was none, because nothing was to be chosen."""
        return {f.config: self._result.samples[f.name] for f in self.left if f.name in self._result.samples}

    def _choice(self) -> Choice:
        if self.alone:
            return ONLY_THE_DEFAULT if self.default else THE_ONLY
        return choose(
            [self._result.samples[finalist.name] for finalist in self.left],
            [_rank(self.tuning, finalist.config) for finalist in self.left],
            default=self.left.index(self.default) if self.default else None,
            served=self.left.index(self.served) if self.served in self.left else None,
        )

    def _running(self, finalists: list[Finalist]) -> list[Finalist]:
        return [finalist for finalist in finalists if finalist.name not in self._result.failed]


def _plan(tuning: TuningTask, plan: FinishPlan) -> FinishPlan:
    """The plan at this moment: a search may be stopped in its last stages, too."""
    return STOPPED if tuning.end.stopping else plan


def _served(tuning: TuningTask) -> Config | None:
    """The config of the tuned kernel that answers so far."""
    known = tuning.stored()
    return known.config if known is not None and known.role == "tuned" else None


def _finalists(tuning: TuningTask, defaults: Collection[Config], served: Config | None, most: int) -> list[Finalist]:
    """The default first, then at most ``most`` of the measured candidates, and the one that is served."""
    measured = tuning.measured()
    best_default = next((config for config in measured if config in defaults), None)
    configs: list[Config] = [] if best_default is None else [best_default]
    others = {config: us for config, us in measured.items() if config != best_default}
    configs += finalists_of(others, most + 1 - len(configs))
    configs += [config for config in measured if config == served and served not in configs]
    return built_finalists(tuning, configs)


def built_finalists(tuning: TuningTask, configs: Sequence[Config]) -> list[Finalist]:
    """``configs`` packaged, built again where the build is gone; one that does not build is recorded so.

    Raises VerificationFailed where none is left.
    """
    known = {config: tuning.evaluator.build_of(config) for config in configs}
    builds = {config: tuning.workbench.build(tuning.gemm, config) for config in configs if known[config] is None}
    finalists = []
    for config in configs:
        try:
            binary = known[config] or tuning.evaluator.built(builds[config])
        except TirgemmError as error:
            mark_failed(tuning, config, error)
            continue
        finalists.append(Finalist(config, binary, tuning.workbench.package(tuning.gemm, config, binary)))
    if not finalists:
        raise VerificationFailed(f"no candidate of {tuning.gemm} on {tuning.device.name} was measured")
    return finalists


def _distinct(finalists: list[Finalist]) -> list[Finalist]:
    """Without those that are the same kernel as an earlier one: it is no faster than itself."""
    kept: dict[object, Finalist] = {}
    for finalist in finalists:
        kept.setdefault(finalist.kernel, finalist)
    return list(kept.values())


def _selection(
    tuning: TuningTask, finalists: list[Finalist], default: Finalist | None, plan: FinishPlan, *, swap: bool = False
) -> RaceResult:
    """The race that chooses, between the finalists alone; the default's samples stand beside the others'.

    Each finalist's samples become a sample set of its record; one that fails is recorded so.
    """
    plan = _plan(tuning, plan)
    options = RaceOptions(tuning.regime, plan.samples, plan.selection_s, "selection", tuning.seed, swap)
    result = tuning.evaluator.race({finalist.name: finalist.package for finalist in finalists}, (), options)
    theirs = result.samples.get(default.name) if default else None
    samples: dict[str, SampleSet] = {}
    for finalist in finalists:
        if finalist.name in result.failed:
            mark_failed(tuning, finalist.config, result.failed[finalist.name])
            continue
        taken = result.samples[finalist.name]
        if theirs is not None and finalist is not default:
            taken = taken.beside(DEFAULT, theirs.samples_us)
        samples[finalist.name] = taken
        tuning.store.add_samples(tuning.evaluator.key(finalist.config), samples[finalist.name])
    chosen_from = RaceResult(samples, result.failed)
    entries = tuple(_entry(finalist, chosen_from, default, tuning.seed) for finalist in finalists)
    tuning.emit(FinalistsRaced(entries=entries, swapped=swap))
    return chosen_from


def _entry(finalist: Finalist, result: RaceResult, default: Finalist | None, seed: int) -> RaceEntry:
    """What is told of a finalist's race."""
    config, digest = str(finalist.config), finalist.config.digest
    if finalist.name in result.failed:
        return RaceEntry(config, digest, message=str(result.failed[finalist.name]))
    samples = result.samples[finalist.name]
    low, high = (round(float(value), 4) for value in np.quantile(samples.samples_us, (0.25, 0.75)))
    compared = finalist is default or DEFAULT in samples.baselines
    ratio, ratio_low = ratio_to_default(samples, seed=seed) if compared else (None, None)
    return RaceEntry(config, digest, samples.median_us, low, high, len(samples.samples_us), ratio, ratio_low)


def _rank(tuning: TuningTask, config: Config) -> tuple[int, ...]:
    """Smaller is simpler: the order of the families, then of each knob's choices."""
    family = family_named(config.family)
    order = [f.name for f in tuning.families].index(config.family)
    return (order, *family.space(tuning.gemm, tuning.device).indices(config).values())


def mark_failed(tuning: TuningTask, config: Config, error: TirgemmError, gemm: Gemm | None = None) -> None:
    """Record what became of a finalist, of a part ``gemm`` where given. Raises an error that says nothing of it."""
    base = Candidate(gemm or tuning.gemm, tuning.device.key, tuning.regime, config, Status.CRASHED)
    base = tuning.store.candidate(base.key) or base
    tuning.store.add_candidate(failed(base, error))


def _beside_default(
    tuning: TuningTask,
    winner: Finalist,
    default: Finalist | None,
    options: RaceOptions,
    plan: FinishPlan,
    *,
    confirm: bool = False,
) -> SampleSet:
    """The winner's samples beside the default's, which are its own where it is the default, and the baselines'. Both
    are kept. Where a gap is small and to be confirmed half of them are taken with the buffers swapped. Raises what ends
    the winner."""
    entries = {finalist.name: finalist.package for finalist in (winner, default) if finalist}
    evaluator, wanted = tuning.evaluator, _plan(tuning, plan).baselines
    baselines = () if wanted == "none" else evaluator.quick_baselines if wanted == "quick" else evaluator.baselines
    result = evaluator.race(entries, baselines, options, confirm=confirm)
    samples = result.of(winner.name)
    if default is winner:
        samples = samples.beside(DEFAULT, samples.samples_us)
    elif default and default.name in result.samples:
        beside = result.samples[default.name]
        tuning.store.add_samples(tuning.evaluator.key(default.config), beside)
        samples = samples.beside(DEFAULT, beside.samples_us)
    tuning.store.add_samples(tuning.evaluator.key(winner.config), samples)
    return samples


def reported_timings(
    tuning: TuningTask,
    default: Finalist | None,
    evidence: Evidence,
    reason: str,
    summary: SearchSummary,
    plan: FinishPlan,
) -> Timings:
    """Both regimes' figures of a certified finalist, the default's if one runs, and why it was chosen. A search whose
    last stages are hurried is an interrupted one, too."""
    plan = _plan(tuning, plan)
    if plan is STOPPED:
        summary = replace(summary, ended="interrupted")
    selection = SelectionReason(reason, ratio_to_default(evidence.report)[1] if default else None)
    named = str(default.config) if default else None
    timings = Timings({tuning.regime: timing_summary(evidence.report)}, named, selection, summary)
    other = next(regime for regime in REGIMES if regime != tuning.regime)
    if plan.untimed:
        return timings.with_regime(other, NotTimed(plan.untimed))
    if tuning.device.kind == "cuda":
        timings = replace(timings, stream=_stream(tuning.evaluator.measurer.stream))
    options = RaceOptions(other, plan.samples, plan.other_regime_s, "other_regime", tuning.seed)
    try:
        samples = _beside_default(tuning, evidence.finalist, default, options, plan)
    except Cancelled:
        raise
    except TirgemmError as error:
        # The other regime's figure is for information: failing to take it must not lose a certified kernel.
        return timings.with_regime(other, NotTimed(str(error)))
    return timings.with_regime(other, timing_summary(samples))


def _stream(measure: Callable[[], SampleSet]) -> StreamTiming | NotTimed:
    """What ``measure`` says of the bandwidth of reading alone, taken beside the report: a ceiling, for information as
    the other regime is."""
    try:
        samples = persistent(measure)
    except Cancelled:
        raise
    except TirgemmError as error:
        return NotTimed(str(error))
    nbytes, median = int(samples.conditions["bytes"]), samples.median_us
    return StreamTiming(nbytes, median, len(samples.samples_us), nbytes / median / 1e3, samples.conditions["at"])


def store_selected(
    tuning: TuningTask, winner: Finalist, certificate: Certificate, timings: Timings, summary: SearchSummary
) -> KernelRecord:
    """Store a kernel as the answer, and tell it."""
    record = tuning.evaluator.store_kernel(
        winner.config, winner.binary, "tuned", certificate, timings, trials=summary.trials
    )
    tuning.emit(KernelSelected(kernel=record.id, config=str(winner.config), timings=timings))
    return record
