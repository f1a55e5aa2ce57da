"""Kernels of shipped records: which configs are offered, and the kernel of the fastest, built with no search."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tirgemm.config import Config
from tirgemm.errors import Cancelled, TirgemmError
from tirgemm.events import KernelSelected, Phase
from tirgemm.families import is_valid
from tirgemm.gemm import REGIMES
from tirgemm.timings import NotTimed, SearchSummary, SelectionReason, Timings
from tirgemm.tuning.evaluate import timing_summary
from tirgemm.tuning.finish import FinishPlan, mark_failed
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Certificate, KernelRecord, SampleSet
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.offer import Offer, raced_configs
from tirgemm.tuning.tuning_task import TuningTask

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

# Of an offer so many configs are tried: raced with the default, or built one after the other until one is right.
TRIED = 4
# The answer is there before a search would have begun; on a GPU the first of a worker waits for PyTorch's import.
PLAN = FinishPlan(
    TRIED,
    selection_s=1.0,
    baselines="quick",
    confirms=False,
    untimed="not measured: the config was shipped, and nothing was searched here",
)


def offered_configs(tuning: TuningTask, offer: Offer) -> list[Config]:
    """The fastest configs of an offer, fastest first, and before them those that were raced beside each other: what the
    families of this tuning still take."""
    names = {family.name for family in tuning.families}
    ordered = dict.fromkeys([*raced_configs(offer.candidates), *fastest(offer.candidates, len(offer.candidates))])
    taken = (c for c in ordered if c.family in names and is_valid(tuning.gemm, c, tuning.device))
    return list(islice(taken, TRIED))


def shipped_kernel(tuning: TuningTask, offer: Offer, default: Config, summary: SearchSummary) -> KernelRecord | None:
    """The fastest config of an offer that was measured or raced on devices as this one, built, certified, timed and
    stored.

    None where none of the fastest is right here, or where the offer does not say that it has the best: nothing was
    raced, and it has no candidate of the family whose ``default`` is predicted to be the fastest, or too few, as a
    collection that was cut off leaves them. What fails is recorded so. Raises Cancelled.
    """
    tried = {candidate.config.family for candidate in offer.candidates}
    if not offer.raced_here and (len(offer.candidates) < TRIED or default.family not in tried):
        return None
    raced = raced_configs(offer.candidates) if offer.raced_here else []
    how = (
        f"{len(raced)} shipped candidates, raced" if raced else f"{len(offer.candidates)} shipped candidates, measured"
    )
    words = f"the fastest of {how} on such a device with this driver and TVM"
    for config in offered_configs(tuning, offer):
        if raced and config not in raced:
            break
        tuning.raise_if_cancelled()
        try:
            return _certified(tuning, config, default, words, summary)
        except TirgemmError as error:
            if isinstance(error, Cancelled):
                raise
            mark_failed(tuning, config, error)
    return None


def _certified(tuning: TuningTask, config: Config, default: Config, words: str, summary: SearchSummary) -> KernelRecord:
    made = certified_shipped(tuning, config, default, words, summary)
    tuning.store.add_samples(tuning.evaluator.key(config), made.report)
    record = tuning.evaluator.store_kernel(
        config, made.binary, "tuned", made.certificate, made.timings, trials=summary.trials
    )
    tuning.emit(KernelSelected(kernel=record.id, config=str(config), timings=made.timings))
    return record


@dataclass(frozen=True)
class ShippedKernel:
    """A kernel of a shipped config, with its evidence and its times here."""

    binary: Binary
    package: bytes
    certificate: Certificate
    report: SampleSet
    timings: Timings


def certified_shipped(
    tuning: TuningTask, config: Config, default: Config, reason: str, summary: SearchSummary
) -> ShippedKernel:
    """A shipped config built, certified and timed, and why it was taken. Raises what ends it."""
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
    return ShippedKernel(binary, package, certificate, samples, timings)
