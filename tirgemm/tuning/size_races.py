"""Races at sizes of a range of m: what they show that configs lose, and those between the sizes that are compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Cancelled, InvalidRequest, VerificationFailed
from tirgemm.families import is_valid
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.finish import Finalist, Selection, built_finalists, mark_failed
from tirgemm.tuning.kernel_set.losses import fast_configs, losses_everywhere
from tirgemm.tuning.kernel_set.partition import UNKNOWN, Loss, valid_segments
from tirgemm.tuning.measure.requests import WARM_S, RaceOptions
from tirgemm.tuning.records import SMALLER_M, SampleSet, Status
from tirgemm.tuning.records.races_below import RacesBelow
from tirgemm.tuning.selection import ratio_low
from tirgemm.tuning.set_members import TOLERANCE
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import TuningTask

# At most so many are raced at a size, which are estimated to take at most so many times the best.
RACED, NEAR = 4, 1.15
SAMPLES, SECONDS = 20, 0.25
# Where so many seconds have passed since the last race, so long a warm-up, on top of the seconds, a few times: an H200
# that had been idle for nine seconds began with clocks up to 20 % above what its power limit left it seconds later.
PAUSE_S, COLD_WARM_S, MOST_COLD = 1.0, 2.0, 3
# What would serve is raced in so many rounds, for at most so many times the seconds of the races before in all.
SERVING_ROUNDS, SERVING = 2, 1.0


def losses_at(measured: Mapping[Config, float], raced: Mapping[Config, SampleSet], seed: int) -> dict[Config, Loss]:
    """What everything that was measured at one size loses there: what was ``raced`` by that race, the others by the
    microseconds that the search measured, as far as the race's times lie from its."""
    if not raced:
        best = min(measured.values())
        return {config: Loss(us / best, us / best) for config, us in measured.items()}
    times = {config: samples.median_us for config, samples in raced.items()}
    fastest = min(times, key=lambda config: times[config])
    scales = sorted(times[config] / measured[config] for config in times)
    losses = {}
    for config, us in measured.items():
        ratio = max(1.0, us * scales[len(scales) // 2] / times[fastest])
        losses[config] = Loss(ratio, ratio)
    for config, samples in raced.items():
        shown = ratio_low(samples.samples_us, raced[fastest].samples_us, seed=seed)
        losses[config] = Loss(times[config] / times[fastest], max(1.0, shown))
    return losses


def with_races(
    problems: Sequence[Gemm], losses: Sequence[Mapping[Config, Loss]], races: RacesBelow, seed: int
) -> list[dict[Config, Loss]]:
    """``losses`` at each of ``problems`` with what the races at their m show in the place of what is estimated. Of a
    race the samples of the fastest may alone have been recorded."""
    shown = []
    for gemm, at_size in zip(problems, losses, strict=True):
        raced = {config: samples for config, samples in races.get(gemm.m_max, {}).items() if config in at_size}
        ratios = {config: loss.ratio for config, loss in at_size.items()}
        shown.append(losses_at(ratios, raced, seed) if raced else dict(at_size))
    return shown


def recorded_losses(
    problems: Sequence[Gemm],
    measured: Mapping[Gemm, Mapping[Config, Loss]],
    races: RacesBelow,
    device: Device,
    regime: Regime,
    seed: int,
) -> list[dict[Config, Loss]]:
    """What configs lose at each of ``problems``, by rising m, by the records of a search: at those ``measured`` what
    they lost there, at others by its ``races``, and where there was none as ``losses_everywhere`` estimates."""
    rivals = list(dict.fromkeys(chain(fast_configs(measured.values()), *races.values())))
    return with_races(problems, losses_everywhere(problems, rivals, measured, device, regime), races, seed)


def race_between(
    whole: TuningTask,
    problems: Sequence[Gemm],
    losses: list[dict[Config, Loss]],
    compared: Sequence[tuple[Tuning, Selection]],
    seconds: float,
    untried: Mapping[Gemm, Collection[Config]],
    measure: Callable[[Sequence[Tuning], Mapping[Gemm, Sequence[Config]]], None],
    servers_now: Callable[[], Collection[Config]],
) -> None:
    """Race what is estimated to be the fastest at those of ``problems`` that were not ``compared``, for about so many
    ``seconds``, and put what it loses in the place of the estimates in ``losses``. What is ``untried`` at a size stays
    there only by a race. Then the range is cut, by those losses, between ``servers_now()``, and what would serve a size
    without a race there is raced there, too, for at most ``SERVING`` times as many seconds.

    A kernel that was built for the next size that was compared serves smaller m, too: what was raced there need not be
    built, and the others are built side by side. The races come first where most is at stake.
    What the caller does between batches is done between races, on nobody's budget. Ends early where the search is to be
    stopped. The samples become sample sets of the candidates at the size above, as ``races_below`` reads them. What is
    the fastest in a race and was not measured at that size is by ``measure``, whatever time that takes, and does not
    stay where it fails. Raises Cancelled.
    """
    sizes = [_SizeAbove(tuning, {f.config: f for f in race.left}) for tuning, race in compared]
    between = _RacesBetween(whole, problems, losses, sizes, measure)
    between.apply(between.run(between.of_fastest(), seconds), untried)
    for _ in range(SERVING_ROUNDS):
        if whole.end.stopping:
            return
        serving = between.of_serving(servers_now())
        between.apply(between.run(serving, SERVING * seconds / SERVING_ROUNDS), {})


class _RacesBetween:
    """The races at those of ``problems`` that were not compared, by their places, and what they show in ``losses``."""

    def __init__(
        self,
        whole: TuningTask,
        problems: Sequence[Gemm],
        losses: list[dict[Config, Loss]],
        compared: Sequence[_SizeAbove],
        measure: Callable[[Sequence[Tuning], Mapping[Gemm, Sequence[Config]]], None],
    ) -> None:
        self.whole = whole
        self.problems = problems
        self.losses = losses
        self.compared = compared
        self.measure = measure
        self._above: dict[int, _SizeAbove] = {}
        self._raced: dict[int, dict[Config, SampleSet]] = {}
        self._ended = -math.inf
        for place, gemm in enumerate(problems):
            size = next((size for size in compared if size.tuning.gemm.m_max >= gemm.m_max), None)
            if size is not None and size.tuning.gemm != gemm:
                self._above[place] = size

    def of_fastest(self) -> dict[int, list[Config]]:
        """What is estimated to be the fastest at each place, those first where most is at stake."""
        at = dict(zip(self.problems, self.losses, strict=True))
        nearest = {place: size.nearest(self.losses[place]) for place, size in self._above.items()}
        stakes = {place: _at_stake(self.losses[place], at[size.tuning.gemm]) for place, size in self._above.items()}
        order = sorted(nearest, key=stakes.__getitem__, reverse=True)
        return {place: nearest[place] for place in order if len(nearest[place]) > 1}

    def of_serving(self, servers: Collection[Config]) -> dict[int, list[Config]]:
        """What would serve each place and was not raced there, with what was, or is estimated to be the fastest; none
        where nothing serves the range."""
        try:
            segments = valid_segments(self.problems, self.losses, servers, self.whole.device, tolerance=TOLERANCE)
        except InvalidRequest:
            return {}
        wanted = {}
        for segment in segments:
            for place in range(segment.first, segment.last + 1):
                size, raced = self._above.get(place), self._raced.get(place, {})
                new = segment.config in self.losses[place].keys() - {*raced}
                if size is None or not new or not size.runs(segment.config):
                    continue
                beside = [*raced] or size.nearest(self.losses[place])
                if others := [config for config in beside if size.runs(config) and config != segment.config]:
                    wanted[place] = [*others, segment.config]
        return wanted

    def run(self, wanted: Mapping[int, Sequence[Config]], seconds: float) -> set[int]:
        """Race these configs at each place, in this order, for so many seconds; the places that were raced. Raises
        Cancelled."""
        deadline, reached, cold = time.monotonic() + seconds, set[int](), 0
        try:
            for place, configs in wanted.items():
                self._above[place].begin(configs)
            for place, configs in wanted.items():
                began = time.monotonic()
                self.whole.between_batches()
                deadline += time.monotonic() - began
                self.whole.raise_if_cancelled()
                if self.whole.end.stopping or time.monotonic() > deadline:
                    break
                size = self._above[place]
                if len(entries := size.entries(configs)) < 2:
                    continue
                warm_s = COLD_WARM_S if time.monotonic() - self._ended > PAUSE_S and cold < MOST_COLD else WARM_S
                cold += warm_s == COLD_WARM_S
                deadline += warm_s - WARM_S
                if samples := size.raced(self.problems[place], entries, warm_s):
                    self._raced[place] = samples
                    reached.add(place)
                self._ended = time.monotonic()
        except Cancelled:
            if not self.whole.end.stopping:
                raise
        finally:
            for size in self.compared:
                self.whole.workbench.forget_ahead(size.tuning.gemm)
        return reached

    def apply(self, places: Collection[int], untried: Mapping[Gemm, Collection[Config]]) -> None:
        """Measure at the sizes above what won, and put what the races at ``places`` show in the place of estimates;
        what is ``untried`` at a size goes without a race."""
        while not self.whole.end.stopping and (unmeasured := self._unmeasured_fastest()):
            sizes = {size.tuning: size for size in self.compared if size.tuning in unmeasured}
            self.measure([*sizes], {tuning.gemm: configs for tuning, configs in unmeasured.items()})
            for tuning, size in sizes.items():
                size.record_measured()
                size.failed.update(size.unrecorded.keys() & {*unmeasured[tuning]})
        for place, gemm in enumerate(self.problems):
            failed = self._above[place].failed if place in self._above else ()
            samples = {config: taken for config, taken in self._raced.get(place, {}).items() if config not in failed}
            gone = ({*failed, *untried.get(gemm, ())} - {*samples}) & self.losses[place].keys()
            ratios = {config: loss.ratio for config, loss in self.losses[place].items() if config not in gone}
            if ratios and (place in places or gone):
                self.losses[place] = losses_at(ratios, samples, self.whole.seed)

    def _unmeasured_fastest(self) -> dict[Tuning, list[Config]]:
        """What is the fastest in a race and was not measured at the size above, nor has failed there."""
        unmeasured: dict[Tuning, dict[Config, None]] = {}
        for place, samples in self._raced.items():
            size = self._above[place]
            ran = {config: taken for config, taken in samples.items() if config not in size.failed}
            if ran and (fastest := _fastest(ran)) in size.unrecorded:
                unmeasured.setdefault(size.tuning, {})[fastest] = None
        return {tuning: [*configs] for tuning, configs in unmeasured.items()}


def _fastest(samples: Mapping[Config, SampleSet]) -> Config:
    return min(samples, key=lambda config: samples[config].median_us)


def _at_stake(losses: Mapping[Config, Loss], above: Mapping[Config, Loss]) -> float:
    """What is estimated to be lost at a size that the fastest at the next compared one ``above`` serves, as it may
    where no race shows another to be fast; 1 where it is the fastest here, too."""
    fastest = min(above, key=lambda config: above[config].ratio)
    return losses.get(fastest, UNKNOWN).ratio


@dataclass(frozen=True, slots=True)
class _SizeAbove:
    """A size that was compared, and by config the kernels that are ``built`` for the range up to it; what ``failed`` to
    build or to run between the sizes is tried once. ``measured``: what is known to be a measured candidate;
    ``unrecorded``: the samples of what is none. Those have their samples beside what was faster, too."""

    tuning: Tuning
    built: dict[Config, Finalist]
    failed: set[Config] = field(default_factory=set)
    measured: set[Config] = field(default_factory=set)
    unrecorded: dict[Config, list[SampleSet]] = field(default_factory=dict)

    def nearest(self, losses: Mapping[Config, Loss]) -> list[Config]:
        """What is estimated to be the fastest at a smaller size, of what may be built for this one."""
        near = sorted((c for c in losses if losses[c].ratio <= NEAR), key=lambda config: losses[config].ratio)
        return [config for config in near if self.runs(config)][:RACED]

    def runs(self, config: Config) -> bool:
        """Whether a kernel of ``config`` may be built for the range up to this size, and has not failed there."""
        return config not in self.failed and is_valid(self.tuning.gemm, config, self.tuning.device)

    def begin(self, configs: Sequence[Config]) -> None:
        """Begin to build what is not."""
        for config in configs:
            if config not in self.built and self.tuning.evaluator.build_of(config) is None:
                self.tuning.workbench.build_ahead(self.tuning.gemm, config)

    def entries(self, configs: Sequence[Config]) -> list[Finalist]:
        """Those of ``configs`` that are built, once they are; what does not build is recorded so."""
        tuning, missing = self.tuning, [config for config in configs if config not in {*self.built, *self.failed}]
        with tuning.workbench.waits_told(tuning.tell_wait):
            with suppress(VerificationFailed):  # none of them builds, which is recorded
                self.built.update({f.config: f for f in (built_finalists(tuning, missing) if missing else ())})
            self.failed.update(config for config in missing if config not in self.built)
        return [self.built[config] for config in configs if config in self.built and config not in self.failed]

    def raced(self, gemm: Gemm, entries: Sequence[Finalist], warm_s: float) -> dict[Config, SampleSet]:
        """The samples of a race between ``entries`` at a smaller size, behind ``warm_s`` that are not counted; none
        where fewer than two of them run. What does not is recorded so."""
        tuning = self.tuning
        seconds = SECONDS + warm_s - WARM_S
        options = RaceOptions(tuning.regime, SAMPLES, seconds, SMALLER_M, tuning.seed, m=gemm.m_max, warm_s=warm_s)
        with tuning.workbench.waits_told(tuning.tell_wait):
            result = tuning.evaluator.race({entry.name: entry.package for entry in entries}, (), options)
        for entry in entries:
            if entry.name in result.failed:
                mark_failed(tuning, entry.config, result.failed[entry.name])
                self.failed.add(entry.config)
                del self.built[entry.config]
        samples = {f.config: result.samples[f.name] for f in entries if f.name in result.samples}
        if len(samples) < 2:
            return {}
        self._keep(samples)
        return samples

    def _keep(self, samples: Mapping[Config, SampleSet]) -> None:
        """Record the samples of a race, or keep them until they can be.

        What has no record here has its samples beside those of each that was faster, up to the first that has one: any
        of these may turn out to be the fastest that is right.
        """
        ranked = sorted(samples, key=lambda config: samples[config].median_us)
        without = [config for config in ranked if not self._is_measured(config)]
        first = next((place for place, config in enumerate(ranked) if config not in without), len(ranked))
        for place, config in enumerate(ranked):
            taken = samples[config]
            for other in without if place <= first else ():
                if other in ranked[place + 1 :]:
                    taken = taken.beside(other.digest, samples[other].samples_us)
            if config in without:
                self.unrecorded.setdefault(config, []).append(taken)
            else:
                self._record(config, taken)

    def _is_measured(self, config: Config) -> bool:
        if config not in self.measured:
            candidate = self.tuning.store.candidate(self.tuning.evaluator.key(config))
            if candidate is None or candidate.status is not Status.MEASURED:
                return False
            self.measured.add(config)
        return True

    def _record(self, config: Config, samples: SampleSet) -> None:
        self.tuning.store.add_samples(self.tuning.evaluator.key(config), samples)

    def record_measured(self) -> None:
        """Give samples to the records of what is a measured candidate by now."""
        for config in [config for config in self.unrecorded if self._is_measured(config)]:
            for samples in self.unrecorded.pop(config):
                self._record(config, samples)
