"""Kernels of shipped records: which configs are offered, and the kernel of the fastest, built with no search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from tirgemm.config import Config
from tirgemm.errors import Cancelled, TirgemmError
from tirgemm.events import Phase
from tirgemm.families import is_valid
from tirgemm.families.choice import fastest_families
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.timings import NotTimed, SearchSummary, SelectionReason, Timings
from tirgemm.tuning.evaluate import timing_summary
from tirgemm.tuning.finish import Finalist, FinishPlan, mark_failed, store_selected
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import CandidateKey, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.offer import Offer, raced_times
from tirgemm.tuning.set_members import Member
from tirgemm.tuning.tuning_task import TuningTask

# Of an offer so many configs are tried: raced with the default, or built one after the other until one is right. So
# many of them are of a race elsewhere, where what was recorded as the fastest ran, too.
TRIED, RACED = 4, 2
# The answer is there before a search would have begun; on a GPU the first of a worker waits for PyTorch's import.
PLAN = FinishPlan(
    TRIED,
    selection_s=1.0,
    baselines="quick",
    confirms=False,
    untimed="not measured: the config was shipped, and nothing was searched here",
)


def offered_configs(tuning: TuningTask, offer: Offer) -> list[Config]:
    """The fastest configs of an offer, fastest first, and before them the first of those that were raced beside each
    other anywhere: what the families of this tuning still take."""
    ordered = [*islice(raced_times(offer.candidates), RACED), *fastest(offer.candidates, len(offer.candidates))]
    return list(islice(_taken(tuning, dict.fromkeys(ordered)), TRIED))


def failed_here(tuning: TuningTask, gemm: Gemm, config: Config) -> bool:
    """Whether the store has a config as one that does not work."""
    candidate = tuning.store.candidate(CandidateKey(gemm, tuning.device.key, tuning.regime, config.digest))
    return candidate is not None and candidate.status is not Status.MEASURED


def shipped_kernel(tuning: TuningTask, offer: Offer, default: Config, summary: SearchSummary) -> KernelRecord | None:
    """The fastest config of an offer that was raced or measured on devices as this one, built, certified, timed and
    stored.

    None where none of the fastest is right here, or where the offer does not say that it has the best: of a race the
    winner is not taken any more, or nothing was raced, and it has no candidate of a family whose default may be
    the fastest, or too few, as a collection that was cut off leaves them. What fails is recorded so.
    Raises Cancelled.
    """
    if offer.raced:
        configs, number = list(_taken(tuning, offer.raced)), len(offer.raced)
        what = f"the fastest of {number} that were raced" if number > 1 else "what all searches of a race chose"
        says_best = configs[:1] == [*offer.raced][:1]
    else:
        configs, number = offered_configs(tuning, offer), len(offer.candidates)
        what = f"the fastest of {number} shipped candidates, measured"
        fastest = fastest_families(tuning.families, tuning.gemm, tuning.device, tuning.regime)
        tried = any(candidate.config.family in fastest for candidate in offer.candidates)
        says_best = tried and len(offer.candidates) >= TRIED
    words = f"{what} on such a device with this driver and TVM"
    for config in configs if says_best else ():
        if failed_here(tuning, tuning.gemm, config):
            continue
        tuning.raise_if_cancelled()
        try:
            return _certified(tuning, config, default, words, summary)
        except TirgemmError as error:
            if isinstance(error, Cancelled):
                raise
            mark_failed(tuning, config, error)
    return None


def _taken(tuning: TuningTask, configs: Iterable[Config]) -> Iterator[Config]:
    """Those that the families of this tuning still take."""
    names = {family.name for family in tuning.families}
    return (c for c in configs if c.family in names and is_valid(tuning.gemm, c, tuning.device))


def _certified(tuning: TuningTask, config: Config, default: Config, words: str, summary: SearchSummary) -> KernelRecord:
    member, report = certified_shipped(tuning, config, default, words, summary)
    made = member.finalist
    if tuning.store.candidate(tuning.evaluator.key(config)) is None:
        tuning.evaluator.record_measured(config, made.binary, made.package, member.certificate, report)
    else:
        tuning.store.add_samples(tuning.evaluator.key(config), report)
    return store_selected(tuning, made, member.certificate, member.timings, summary)


def certified_shipped(
    tuning: TuningTask, config: Config, default: Config, reason: str, summary: SearchSummary
) -> tuple[Member, SampleSet]:
    """A shipped config built, certified and timed, with why it was taken, and its samples. Raises what ends it."""
    evaluator = tuning.evaluator
    binary = evaluator.built(tuning.workbench.build(tuning.gemm, config))
    package = tuning.workbench.package(tuning.gemm, config, binary)
    tuning.enter(Phase.CERTIFYING)
    certificate = evaluator.certify(package)
    options = RaceOptions(tuning.regime, PLAN.samples, PLAN.report_s, "report", tuning.seed + 1)
    samples = evaluator.race({config.digest: package}, evaluator.quick_baselines, options).of(config.digest)
    timings = Timings({tuning.regime: timing_summary(samples)}, str(default), SelectionReason(reason), summary)
    for regime in REGIMES:
        if regime != tuning.regime:
            timings = timings.with_regime(regime, NotTimed(PLAN.untimed))
    return Member(tuning.gemm, Finalist(config, binary, package), certificate, timings), samples
