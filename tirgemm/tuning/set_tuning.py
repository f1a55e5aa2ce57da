"""``SetTuning``: tuning of a problem whose m is a range, to the few kernels that serve it.

The same search as a fixed m's runs at sizes of m over the range, all on one scheduler. What is fastest at one size is
timed at the others; a dynamic program cuts the range, and each part's kernel is built for that part and certified.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from tirgemm.config import Config
from tirgemm.errors import Cancelled, InvalidRequest, TirgemmError, VerificationFailed
from tirgemm.events import KernelSelected, Phase
from tirgemm.families import Family, family_named, is_valid, refusal
from tirgemm.families.base import WithShortlist
from tirgemm.families.choice import expected_time_us
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.gemm import Gemm, Range
from tirgemm.timings import SearchEnd, SearchSummary
from tirgemm.tuning.budget import covers, is_within_default
from tirgemm.tuning.default_set import size_defaults
from tirgemm.tuning.finish import QUICK, FinishPlan, Selection, mark_failed
from tirgemm.tuning.kernel_set.losses import fast_configs, losses_everywhere, untried
from tirgemm.tuning.kernel_set.partition import Loss, Segment, borders, midpoints, servers, valid_segments
from tirgemm.tuning.kernel_set.set_events import SetEvents
from tirgemm.tuning.kernel_set.sizes import coarse_first, compared_sizes, cut_sizes, searched_sizes
from tirgemm.tuning.records import KernelRecord, Status
from tirgemm.tuning.records.offer import joint_origin
from tirgemm.tuning.records.row_signatures import RowsDiffer
from tirgemm.tuning.search.neighbourhood import cache_variants
from tirgemm.tuning.set_members import MOST_CUTS, TOLERANCE, Member, SetPart, built_member, mark_differing, set_record
from tirgemm.tuning.shipped_set import OFFERED, recorded_parts, shipped_set
from tirgemm.tuning.size_races import losses_at, race_between
from tirgemm.tuning.sweep import Sweep
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

# At each size so many of the other sizes' fastest, nearest first, are timed.
VISITORS = 8
# The same of an effort that searches nothing beyond the first configs.
OFFERED_QUICK, VISITORS_QUICK = 1, 4
# What is fast at a size that is no neighbour is timed where it is expected to take at most so many times the best.
PROMISING = 1.3
# Between the sizes that are compared so many are raced, too, that are expected to be the fastest there.
PROPOSED = 2
# The race at each size that compares them.
COMPARISON = FinishPlan(finalists=7, samples=20, selection_s=0.5, confirms=False)
# What is behind the certificate of a kernel below the last one, of which a set tells one time.
MEMBER = replace(QUICK, untimed="not measured: of a kernel set the last kernel alone is timed in both regimes")
# The races at sizes between those may take this share of the budget's seconds, and those of what would serve there as
# many again.
BETWEEN = 0.4
# Of the measurements behind the search, which are few; none of them is left out for want of time.
BEHIND_SECONDS = math.inf
# In the order in which they say how a search of many sizes ended.
_ENDS: tuple[SearchEnd, ...] = ("interrupted", "seconds", "trials", "expected_gain", "complete", "exhausted")


def tuning_class(gemm: Gemm) -> type[Tuning]:
    """The tuning of a problem: to one kernel, or to a set where m is a range."""
    return SetTuning if isinstance(gemm.m, Range) else Tuning


def tuned_record(tuning: Tuning) -> KernelRecord:
    """The answer for a problem: the store's where its search covers the tuning's budget, else what the tuning finds
    now. Raises what ``Tuning.run`` raises."""
    record = tuning.loadable()
    return record if record is not None and covers(record, tuning.budget) else tuning.run()


class SetTuning(Tuning):
    """One tuning of one problem whose m is a range. The fallback is one kernel for all of it.

    The budget's trials are those of each size's search, its seconds those of all the searches together; the races
    between the sizes take two shares of as many on top, and what is measured behind them some more. A search that is
    stopped ends with one kernel for the whole range.
    """

    @cached_property
    def _events(self) -> SetEvents:
        return SetEvents(self.emit, str(self.m), self.standing)

    @cached_property
    def _of_sizes(self) -> dict[int, Tuning | None]:
        return {}

    @property
    def m(self) -> Range:
        """The whole range."""
        assert isinstance(self.gemm.m, Range)
        return self.gemm.m

    def improved(self, known: KernelRecord) -> KernelRecord:
        """Search the sizes, cut the range, certify each part's kernel, store them as the answer."""
        self.enter(Phase.STARTING, f"the search of {len(searched_sizes(self.m))} sizes of m")
        tunings = self._size_tunings(searched_sizes(self.m))
        offered_sizes = self._offered_at(tunings, known)
        summary = self._searched(tunings, offered_sizes)
        self.raise_if_cancelled()
        if self._stopped():
            return self._of_one_kernel(known)
        if offered_sizes is None:
            self._measure(tunings, {tuning.gemm: self._cache_variants(tuning) for tuning in tunings})
        count = OFFERED if self.effort.searches else OFFERED_QUICK
        offered = {tuning.gemm.m_max: [*tuning.measured()][:count] for tuning in tunings}
        offered = {size: configs for size, configs in offered.items() if configs}
        tunings = self._size_tunings(compared_sizes(self.m))
        self._measure(tunings, {tuning.gemm: self._visitors(tuning, offered) for tuning in tunings})
        tunings = [tuning for tuning in tunings if tuning.measured()]
        proposed = self._proposed()  # before the races, so that the device is not idle between them
        self.enter(Phase.CHOOSING, f"at {len(tunings)} sizes of m")
        races = self._races(tunings)
        if self._stopped():
            return self._of_one_kernel(known)
        measured = {t.gemm: losses_at(t.measured(), race.samples, self.seed) for t, race in races}
        problems = self._cut_problems(measured)
        new = untried(problems, proposed, measured)
        rivals = list(dict.fromkeys(itertools.chain(fast_configs(measured.values()), *new.values())))
        losses = losses_everywhere(problems, rivals, measured, self.device, self.regime, new)
        if len(problems) > len(measured):
            self.enter(Phase.CHOOSING, f"at {len(problems) - len(measured)} sizes of m between those")
        servers_now = partial(servers, [*itertools.chain.from_iterable(offered.values())], losses)
        race_between(self, problems, losses, races, BETWEEN * self.budget.seconds, new, self._measure, servers_now)
        if self._stopped():
            return self._of_one_kernel(known)
        record = self._stored_set(problems, losses, servers_now(), summary)
        if record is None:
            return self._of_one_kernel(known)
        self.emit(KernelSelected(kernel=record.id, config=str(record.config), timings=record.timings))
        return record

    def _of_one_kernel(self, known: KernelRecord) -> KernelRecord:
        """What a search that is stopped ends with; what builds meanwhile is given up."""
        self.workbench.abandon_builds()
        return super().improved(known)

    def _pause(self) -> None:
        """Do what the caller does between batches: between two races or certificates, of which there are many. Raises
        Cancelled."""
        self.between_batches()
        self.raise_if_cancelled()

    def _stopped(self) -> bool:
        return self.end.stopping

    # -- sizes ---------------------------------------------------------------------------------

    def _size_tunings(self, sizes: Sequence[int]) -> list[Tuning]:
        """The tuning of each size that a family writes, in their order: of the range up to it, at its high end. It is
        the same each time, with the builds that it keeps."""
        for size in sizes:
            if size not in self._of_sizes:
                self._of_sizes[size] = self._part(self.m.low, size)
        return [tuning for size in sizes if (tuning := self._of_sizes[size]) is not None]

    def _part(self, low: int, high: int) -> Tuning | None:
        """The tuning of a part of the range; None where no family writes that."""
        gemm = self.gemm.with_(m=Range(low, high))
        names = [family.name for family in self.families if refusal(family, gemm, self.device) is None]
        if not names:
            return None
        told = self._events.handler(str(gemm.m))
        control = Control(told, self.end.cancel, self.end.stop, self.between_batches)
        part = Tuning(
            gemm,
            self.workbench,
            self.regime,
            self.budget,
            seed=self.seed,
            families=names,
            control=control,
            other_devices=self.other_devices,
        )
        if self.budget.more is not None:  # on top of what is recorded at this size
            part.budget = self.budget.on_top_of(part.standing().tried)
        return part

    def _sweep(
        self, tunings: Sequence[Tuning], seconds: float, configs: Mapping[Gemm, Sequence[Config]] | None
    ) -> Sweep:
        sweep = Sweep(tunings, seconds=seconds, configs=configs, selects=False)
        self._events.begin(sum(max(0, one.loop.most - one.loop.trials) for one in sweep.problems))
        sweep.run()
        self._events.end()
        return sweep

    def _shipped_kernel(self) -> KernelRecord | None:
        """The set that shipped records of this device class, driver and TVM make; never one kernel for the range."""
        if not self.shipped_parts or self.offer is None:
            return None
        self.enter(Phase.STARTING, "with the shipped configs")
        sizes = tuple(part.gemm.m_max for part in self.shipped_parts)
        summary = replace(self._summary("shipped", {}), shipped=self.offer.origin, sizes=sizes)
        with self.workbench.waits_told(self.tell_wait):
            return shipped_set(self, self.shipped_parts, summary)

    @cached_property
    def shipped_parts(self) -> list[SetPart]:
        """The parts of the range by shipped records that count as measured here; none where these lack a size."""
        return recorded_parts(self)

    def _offered_at(self, tunings: Sequence[Tuning], known: KernelRecord) -> dict[Gemm, list[Config]] | None:
        """What was shipped of each size for another device, driver or TVM, where that is all that the usual budget
        tries; None where the sizes are to be searched."""
        offered = {tuning.gemm: tuning.offered for tuning in tunings}
        return offered if all(offered.values()) and known.role != "tuned" and is_within_default(self.budget) else None

    def _searched(self, tunings: list[Tuning], offered: Mapping[Gemm, Sequence[Config]] | None) -> SearchSummary:
        """Search every size within the budget, or try what is ``offered`` there; what that came to, with the counts of
        the largest, but the budget's trials where any size has spent them."""
        rank = {size: number for number, size in enumerate(coarse_first(tuple(t.gemm.m_max for t in tunings)))}
        ordered = sorted(tunings, key=lambda tuning: rank[tuning.gemm.m_max])
        sweep = self._sweep(ordered, self.budget.seconds, offered)
        ascending = sorted(sweep.problems, key=lambda problem: problem.tuning.gemm.m_max)
        ends = {problem.loop.ended: problem for problem in ascending}  # the largest of each
        ended = next(end for end in _ENDS if end in ends)
        summary = replace(self.searched(ascending[-1].loop, ended), sizes=tuple(t.gemm.m_max for t in tunings))
        if ended == "trials":  # of a size that may have more records than the budget asks for
            summary = replace(summary, trials=min(ends[ended].tuning.standing().tried, self.budget.trials))
        if offered is None:
            return summary
        origin = joint_origin(tuning.offer for tuning in tunings if tuning.offer is not None)
        return replace(summary, ended="shipped" if ended in ("trials", "complete") else ended, shipped=origin)

    def _measure(self, tunings: Sequence[Tuning], configs: Mapping[Gemm, Sequence[Config]]) -> None:
        """Build, verify, time and record given configs of given parts."""
        wanted = [tuning for tuning in tunings if configs[tuning.gemm]]
        if wanted and not self._stopped():
            self._sweep(wanted, BEHIND_SECONDS, configs)
        self.raise_if_cancelled()

    # -- comparison ----------------------------------------------------------------------------

    def _cache_variants(self, tuning: Tuning) -> list[Config]:
        """What is fastest at a size with other cache policies, as far as its trials go: a search that its seconds end
        has not tried that."""
        fastest = next(iter(tuning.measured()), None)
        if fastest is None:
            return []
        variants = cache_variants(fastest, family_named(fastest.family).space(tuning.gemm, self.device))
        valid = (config for config in variants if is_valid(tuning.gemm, config, self.device))
        known = {candidate.config for candidate in tuning.recorded()}
        new = [config for config in itertools.islice(valid, self.effort.variants) if config not in known]
        return new[: max(0, tuning.budget.trials - tuning.standing().tried)]

    def _visitors(self, tuning: Tuning, offered: Mapping[int, Sequence[Config]]) -> list[Config]:
        """What is fast at other sizes and worth timing at this one, the nearest sizes' first."""
        here = tuning.gemm.m_max
        own, sizes = offered.get(here, ()), sorted({*offered, here})
        place = sizes.index(here)
        visitors: dict[Config, None] = {}
        most = VISITORS if self.effort.searches else VISITORS_QUICK
        for size in sorted(offered, key=lambda size: abs(sizes.index(size) - place)):
            for config in offered[size]:
                if config in own or len(visitors) == most or not is_valid(tuning.gemm, config, self.device):
                    continue
                best = next(iter((*own, *visitors)), config)
                near = abs(sizes.index(size) - place) <= 1
                if near or self._expect(tuning.gemm, config) <= PROMISING * self._expect(tuning.gemm, best):
                    visitors[config] = None
        return list(visitors)

    def _proposed(self) -> dict[Gemm, list[Config]]:
        """At each size at which the range is cut what the model expects to be the fastest."""
        defaults = size_defaults(self.gemm, self.device, self.regime)
        proposed = {gemm: self._best(family, gemm, config) for gemm, (family, config) in defaults.items()}
        return {gemm: [config for config in best if self.is_ours(config)] for gemm, best in proposed.items()}

    def _best(self, family: Family, gemm: Gemm, default: Config) -> list[Config]:
        if isinstance(family, WithShortlist):
            return family.shortlist(gemm, self.device, self.regime, PROPOSED)
        return [default]

    def _expect(self, gemm: Gemm, config: Config) -> float:
        """Microseconds that the model expects."""
        family, model = family_named(config.family), ranking_model(self.device)
        return expected_time_us(family, config, gemm, self.device, self.regime, model)

    def _races(self, tunings: Iterable[Tuning]) -> list[tuple[Tuning, Selection]]:
        """The race between the fastest at each size that is compared, but at those where none of them runs; fewer where
        the search is to be stopped. Raises Cancelled."""
        plan = COMPARISON if self.effort.searches else replace(COMPARISON, selection_s=QUICK.selection_s / 2)
        races: list[tuple[Tuning, Selection]] = []
        try:
            for tuning in tunings:
                self._pause()
                if self._stopped():
                    break
                with self.workbench.waits_told(tuning.tell_wait):
                    races.append((tuning, Selection(tuning, plan)))
        except Cancelled:
            if not self._stopped():
                raise
        return [(tuning, race) for tuning, race in races if tuning.measured()]

    def _cut_problems(self, compared: Iterable[Gemm]) -> list[Gemm]:
        """The problems at the sizes at which the range is cut, by rising m: those that were ``compared``, and between
        them what a family writes."""
        never = set(cut_sizes(self.m)) - set(compared_sizes(self.m))
        between = [self.gemm.with_(m=Range(self.m.low, size)) for size in never]
        able = [gemm for gemm in between if any(refusal(each, gemm, self.device) is None for each in self.families)]
        return sorted([*compared, *able], key=lambda gemm: gemm.m_max)

    # -- the kernels of the set -----------------------------------------------------------------

    def _stored_set(
        self,
        problems: Sequence[Gemm],
        losses: Sequence[Mapping[Config, Loss]],
        configs: list[Config],
        summary: SearchSummary,
    ) -> KernelRecord | None:
        """The kernels that serve the range, stored as the answer; None where the user stopped it before. Those that do
        not give a row the expected bits are recorded as wrong and the range cut without their configs. Raises
        RowsDiffer at the set number ``MOST_CUTS`` of which some do not, and as ``_members``."""
        made: dict[tuple[Gemm, Config], Member] = {}
        cuts = 0
        while True:
            members = self._members(problems, losses, configs, summary, made)
            if members is None:
                return None
            try:
                return set_record(self, members, summary.trials)
            except RowsDiffer as error:
                odd = mark_differing(self, members, error)
                cuts += 1
                if cuts == MOST_CUTS:
                    raise
            configs = [config for config in configs if config not in odd]
            # A member's kernel may be the default of its part instead of the config that it was made for.
            made = {key: member for key, member in made.items() if member.finalist.config not in odd}

    def _members(
        self,
        problems: Sequence[Gemm],
        losses: Sequence[Mapping[Config, Loss]],
        configs: list[Config],
        summary: SearchSummary,
        made: dict[tuple[Gemm, Config], Member],
    ) -> list[Member] | None:
        """The kernels that serve the range, certified; None where the user stopped it before. They go into ``made``,
        and are taken from it. What fails is recorded so and the range cut without it. Raises VerificationFailed where
        nothing is left, Cancelled."""
        refused: set[tuple[int, int, Config]] = set()
        while True:
            try:
                segments = valid_segments(problems, losses, configs, self.device, tolerance=TOLERANCE, refused=refused)
            except InvalidRequest as error:
                raise VerificationFailed(
                    f"none of the fastest kernels of {self.gemm} passed its certificate"
                ) from error
            ranges = self._borders([gemm.m_max for gemm in problems], segments)
            parts = {segment: self._part(m.low, m.high) for segment, m in zip(segments, ranges, strict=True)}
            built = {part.gemm: [segment.config] for segment, part in parts.items() if part is not None}
            self._measure([part for part in parts.values() if part is not None], built)
            if self._stopped():
                return None
            members = []
            for segment, part in parts.items():
                self._pause()
                member = self._member(part, segment, made, summary)
                if member is None:
                    refused.add((segment.first, segment.last, segment.config))
                else:
                    members.append(member)
            if len(members) == len(segments):
                self.end.finishing = True
                return members

    def _member(
        self, part: Tuning | None, segment: Segment, made: dict[tuple[Gemm, Config], Member], summary: SearchSummary
    ) -> Member | None:
        """The certified kernel of one part; None where there is none, which is recorded. Raises Cancelled."""
        candidate = None if part is None else self.store.candidate(part.evaluator.key(segment.config))
        if part is None or candidate is None or candidate.status is not Status.MEASURED:
            return None
        key = part.gemm, segment.config
        part.end.finishing = True
        try:
            if key not in made:
                plan = self.plan if part.gemm.m_max == self.m.high or not self.effort.searches else MEMBER
                made[key] = built_member(part, segment, summary, plan)
        except Cancelled:
            raise
        except TirgemmError as error:
            mark_failed(part, segment.config, error)
            return None
        return made[key]

    def _borders(self, sizes: list[int], segments: list[Segment]) -> list[Range]:
        """The range of m of each segment, by what is measured half way between two."""
        half_way = {middle: self._part(self.m.low, middle) for middle in midpoints(sizes, segments)}
        tunings = {middle: tuning for middle, tuning in half_way.items() if tuning is not None}
        pairs = {tunings[middle].gemm: pair for middle, pair in midpoints(sizes, segments).items() if middle in tunings}
        self._measure(list(tunings.values()), pairs)
        return borders(self.m, sizes, segments, lambda at: tunings[at].measured() if at in tunings else {})
