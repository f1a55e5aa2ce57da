"""Kernel sets of shipped records: a range of m cut again by what was recorded of its sizes, with no search, and the
parts built, certified and timed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from tirgemm.config import Config
from tirgemm.errors import Cancelled, TirgemmError
from tirgemm.events import KernelSelected
from tirgemm.families import Family, is_valid, refusal
from tirgemm.families.choice import fastest_families
from tirgemm.gemm import Gemm, Range
from tirgemm.timings import SearchSummary
from tirgemm.tuning.finish import mark_failed
from tirgemm.tuning.kernel_set.partition import Loss, servers, valid_segments
from tirgemm.tuning.kernel_set.sizes import compared_sizes, cut_sizes, searched_sizes
from tirgemm.tuning.records import Candidate, KernelRecord, SampleSet
from tirgemm.tuning.records.comparable_times import comparable_times
from tirgemm.tuning.records.offer import Offer
from tirgemm.tuning.records.races_below import RacesBelow, latest_race, races_below
from tirgemm.tuning.records.row_signatures import RowsDiffer
from tirgemm.tuning.set_members import MOST_CUTS, TOLERANCE, Member, SetPart, mark_differing, set_record, valid_parts
from tirgemm.tuning.shipped_kernel import certified_shipped, failed_here
from tirgemm.tuning.size_races import losses_at, recorded_losses
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control, TuningTask

# Of each size so many of the fastest may serve others.
OFFERED = 2


def recorded_parts(tuning: TuningTask, without: Collection[Config] = ()) -> list[SetPart]:
    """The parts, ascending, of a problem's range of m, cut by what was shipped of its sizes for this device class,
    driver and TVM, as the search that recorded it cut the range.

    Between the sizes that were compared the search's races say what configs lose, and where there was none it is
    estimated, as ``losses_everywhere`` does. None where of a size that such a search tries nothing was shipped that
    counts, or nothing of the family whose default is expected to be the fastest there. Of a size that was searched
    elsewhere what was raced on such a device counts, as it does for the problem of a single m that the smallest one is.
    Configs in ``without`` are passed over, and others in parts in which they failed.
    """
    whole = tuning.gemm.m
    assert isinstance(whole, Range)
    searched, compared = searched_sizes(whole), compared_sizes(whole)
    problems: list[Gemm] = []
    losses: dict[Gemm, dict[Config, Loss]] = {}
    configs: dict[Config, None] = {}
    of_sizes: list[list[Candidate]] = []
    for size in cut_sizes(whole):
        gemm = tuning.gemm.with_(m=Range(whole.low, size))
        families = [family for family in tuning.families if refusal(family, gemm, tuning.device) is None]
        if not families:
            continue
        if size not in compared:
            problems.append(gemm)
            continue
        offer = _offer(tuning, gemm)
        times = {} if offer is None else _times(tuning, gemm, offer)
        if offer is None or not times:
            if size in searched:
                return []
            continue
        if size in searched and not _says_best(tuning, families, gemm, offer, times):
            return []
        problems.append(gemm)
        losses[gemm] = losses_at(times, _raced(offer.candidates, times) if offer.same else {}, tuning.seed)
        of_sizes.append([candidate for candidate in offer.candidates if offer.same and candidate.config in times])
        if size in searched:
            configs |= dict.fromkeys(sorted(times, key=lambda config: times[config])[:OFFERED])
    known = {candidate.config.digest: candidate.config for of_size in of_sizes for candidate in of_size}
    races: RacesBelow = {}
    for of_size in of_sizes:
        races |= races_below(of_size, known)
    everywhere = recorded_losses(problems, losses, races, tuning.device, tuning.regime, tuning.seed)
    able = [config for config in servers(configs, everywhere) if config not in without]
    cut = partial(valid_segments, problems, everywhere, able, tuning.device, tolerance=TOLERANCE)

    def times_at(middle: int) -> dict[Config, float]:
        gemm = tuning.gemm.with_(m=Range(whole.low, middle))
        offer = _offer(tuning, gemm)
        return {} if offer is None else _times(tuning, gemm, offer)

    return valid_parts(tuning.gemm, tuning.device, problems, cut, times_at, partial(failed_here, tuning))


def shipped_set(whole: Tuning, parts: Sequence[SetPart], summary: SearchSummary) -> KernelRecord | None:
    """The kernels of ``parts``, built side by side, certified and timed as the builds come, and stored as the answer of
    ``whole``.

    A part that fails, or whose kernel does not give a row the expected bits, is recorded so, and the range cut without
    its config; None where nothing is left, or of ``MOST_CUTS`` such sets none gives a row the same bits. Raises
    Cancelled, and RowsDiffer where a stored set does not either.
    """
    record: KernelRecord | None = None
    made: dict[SetPart, Member] = {}
    failed: set[Config] = set()
    begun = set[Gemm]()
    cuts = 0
    try:
        while parts and cuts < MOST_CUTS:
            waiting = [part for part in parts if part not in made]
            whole.raise_if_cancelled()
            for part in waiting:
                begun.add(part.gemm)
                whole.workbench.build_ahead(part.gemm, part.config)
            wrong = _first_failed(whole, waiting, made, summary)
            if not wrong:
                members = [made[part] for part in parts]
                try:
                    record = set_record(whole, members, summary.trials)
                    break
                except RowsDiffer as error:
                    wrong = mark_differing(whole, members, error)
                    cuts += 1
            failed |= wrong
            parts = recorded_parts(whole, failed)
    finally:
        for gemm in begun:
            whole.workbench.forget_ahead(gemm)
    if record is not None:
        whole.emit(KernelSelected(kernel=record.id, config=str(record.config), timings=record.timings))
    return record


def _first_failed(
    whole: Tuning, parts: Sequence[SetPart], made: dict[SetPart, Member], summary: SearchSummary
) -> set[Config]:
    """Certify and time parts, which go into ``made``, up to the first that fails, whose config alone is returned; that
    is recorded. Raises Cancelled."""
    for part in parts:
        whole.raise_if_cancelled()
        tuning = _tuning_of(whole, part)
        try:
            made[part] = _member(tuning, part, summary)
        except Cancelled:
            raise
        except TirgemmError as error:
            mark_failed(tuning, part.config, error)
            return {part.config}
    return set()


def _offer(tuning: TuningTask, gemm: Gemm) -> Offer | None:
    """What was shipped of one problem, if it counts as measured here, or was raced on such a device."""
    offer = tuning.store.offer(gemm, tuning.device, tuning.regime)
    return offer if offer is not None and offer.answers else None


def _says_best(
    tuning: TuningTask, families: Sequence[Family], gemm: Gemm, offer: Offer, times: Collection[Config]
) -> bool:
    """Whether an offer has what is the fastest: the family that is expected to be, or the winner of its race, still
    taken."""
    if not offer.same:
        return next(iter(offer.raced)) in times
    fastest = fastest_families(families, gemm, tuning.device, tuning.regime)
    return any(candidate.config.family in fastest for candidate in offer.candidates)


def _times(tuning: TuningTask, gemm: Gemm, offer: Offer) -> dict[Config, float]:
    """Microseconds of what was measured or raced and the families of this tuning still take."""
    times = comparable_times(offer.candidates) if offer.same else offer.raced
    return {
        config: us
        for config, us in times.items()
        if us is not None and tuning.is_ours(config) and is_valid(gemm, config, tuning.device)
    }


def _raced(candidates: Sequence[Candidate], times: Collection[Config]) -> dict[Config, SampleSet]:
    """The samples of the latest race that chose among the candidates of a size."""
    return latest_race(
        [
            (candidate.config, samples)
            for candidate in candidates
            for samples in candidate.sample_sets
            if samples.reason == "selection" and candidate.config in times
        ]
    )


def _tuning_of(whole: Tuning, part: SetPart) -> Tuning:
    control = Control(cancel=whole.end.cancel)
    family = part.config.family
    return Tuning(part.gemm, whole.workbench, whole.regime, seed=whole.seed, families=[family], control=control)


def _member(tuning: Tuning, part: SetPart, summary: SearchSummary) -> Member:
    """The certified kernel of one part. Raises what ends it."""
    reason = f"serves m = {part.gemm.m} by shipped times, measured on such a device with this driver and TVM"
    member, report = certified_shipped(tuning, part.config, tuning.default()[1], reason, summary)
    made = member.finalist
    tuning.evaluator.record_measured(made.config, made.binary, made.package, member.certificate, report)
    return member
