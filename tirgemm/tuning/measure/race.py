"""Races: packaged kernels of one problem and its baselines, timed interleaved; each that fails has its own reason.

Everything that compares kernels runs a ``Race``: selection, the figures of a stored kernel, results files, the ladder.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tirgemm.errors import DoesNotFit, TirgemmError
from tirgemm.status import Status
from tirgemm.tuning.measure.measurer import Measurer
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.records import SampleSet

# A kill that is not the kernels' own must not cost the race.
ATTEMPTS = 3
# A smaller gap is believed only after a race with the buffers swapped (docs/tuning.md: regimes) ...
SMALL_GAP = 0.03
# ... which is run where so many calls of every contender, about a race's, take no longer than so much.
SWAP_CALLS, SWAP_SECONDS = 72, 3.0


@dataclass(frozen=True, slots=True)
class RaceResult:
    """``samples`` by entry, with the baselines' beside each; ``failed``: by entry, what ended it.

    Where something was left out the conditions of all samples name it with the reason (``left_out``).
    """

    samples: dict[str, SampleSet]
    failed: dict[str, TirgemmError] = field(default_factory=dict)

    @property
    def shared(self) -> bool:
        """Whether all ran on the same operands."""
        return any(samples.conditions.get("shared", False) for samples in self.samples.values())

    def of(self, name: str) -> SampleSet:
        """An entry's samples. Raises what ended it."""
        if name in self.failed:
            raise self.failed[name]
        return self.samples[name]


@dataclass(frozen=True, slots=True)
class Race:
    """Packages of one problem timed beside one another and baselines, in an order drawn anew for every round."""

    measurer: Measurer
    options: RaceOptions
    cancel: Flag | None = None

    def run(self, entries: Mapping[str, bytes], baselines: Sequence[str]) -> RaceResult:
        """The race of these entries and ``baselines``.

        One that dies ``ATTEMPTS`` times, or in which something hangs, is taken apart: every entry runs alone, then
        every baseline beside one that does; those that fail are left out of a last race. Where it dies all the same the
        first entry that runs alone is raced without the others, and last without baselines. Raises Cancelled, and what
        is no fault of one contender: DoesNotFit, InvalidRequest, ArtifactError.
        """
        for _ in range(ATTEMPTS):
            try:
                return RaceResult(self._together(entries, baselines))
            except TirgemmError as error:
                together = _blamed(error)
                if together.outcome is not Status.CRASHED:
                    break
        failed = {name: fault for name, package in entries.items() if (fault := self._failure(package)) is not None}
        sound = {name: package for name, package in entries.items() if name not in failed}
        if not sound:
            return RaceResult({}, failed)
        first = dict(list(sound.items())[:1])
        package = next(iter(first.values()))
        unusable = {name: fault for name in baselines if (fault := self._failure(package, (name,))) is not None}
        usable = [name for name in baselines if name not in unusable]
        for lineup, beside in ((sound, usable), (first, usable), (first, [])):
            try:
                samples = self._together(lineup, beside)
            except TirgemmError as error:
                together = _blamed(error)
                continue
            lost = dict.fromkeys([name for name in sound if name not in lineup], together) | failed
            left_out = dict.fromkeys([name for name in baselines if name not in beside], together) | unusable | lost
            reasons = {name: str(fault) for name, fault in left_out.items()}
            return RaceResult({name: _noted(taken, reasons) for name, taken in samples.items()}, lost)
        return RaceResult({}, dict.fromkeys(sound, together) | failed)

    def confirmed(self, entries: Mapping[str, bytes], baselines: Sequence[str]) -> RaceResult:
        """As ``run``; where the fastest entry is within 3 % of another or of a baseline, with a second race whose
        buffers are swapped."""
        result = self.run(entries, baselines)
        if _is_close(result) and _call_seconds(result) * SWAP_CALLS < SWAP_SECONDS:
            with suppress(DoesNotFit):  # where the first has left less memory
                return joined(result, self._with(swap=True).run(entries, baselines))
        return result

    def fitting(self, entries: Mapping[str, bytes], baselines: Sequence[str], *, confirm: bool) -> RaceResult:
        """As ``run``, or where it is to ``confirm`` as ``confirmed``; where operands of its own for each contender do
        not fit, one race in which all are given the same, which cannot be swapped."""
        try:
            return (self.confirmed if confirm else self.run)(entries, baselines)
        except DoesNotFit:
            if self.options.shared or self.options.swap:
                raise
            return self._with(shared=True).run(entries, baselines)

    def _with(self, **changed: Any) -> Race:
        return replace(self, options=replace(self.options, **changed))

    def _together(self, entries: Mapping[str, bytes], baselines: Sequence[str]) -> dict[str, SampleSet]:
        """Samples by entry, of one run."""
        (first, package), *rest = entries.items()
        run = self.measurer.time(
            package, self.options, against=dict(rest), baselines=tuple(baselines), cancel=self.cancel
        )
        beside = {name: run.baselines[name] for name in baselines if name in run.baselines}
        samples = {first: run.samples_us} | {name: run.baselines[name] for name, _ in rest}
        return {name: SampleSet(taken, run.reason, beside, run.conditions) for name, taken in samples.items()}

    def _failure(self, package: bytes, baselines: tuple[str, ...] = ()) -> TirgemmError | None:
        """What ends a short run of a package alone, or with a baseline; None where nothing does."""
        brief = self._with(min_samples=1, budget_s=0.0, warm_s=0.0)
        try:
            brief._together({"alone": package}, baselines)
        except TirgemmError as error:
            return _blamed(error)
        return None


def joined(first: RaceResult, second: RaceResult) -> RaceResult:
    """Two races between the same entries as one; an entry that failed in either has failed."""
    failed = second.failed | first.failed
    both = {name: (taken, second.samples[name]) for name, taken in first.samples.items() if name not in failed}
    return RaceResult({name: _joined_samples(*pair) for name, pair in both.items()}, failed)


def _blamed(error: TirgemmError) -> TirgemmError:
    """The error where it says something of a contender; else it is raised."""
    if error.outcome is None:
        raise error
    return error


def _noted(samples: SampleSet, left_out: Mapping[str, str]) -> SampleSet:
    return replace(samples, conditions=samples.conditions | {"left_out": dict(left_out)}) if left_out else samples


def _is_close(result: RaceResult) -> bool:
    """Whether the fastest entry is near another, or near a baseline."""
    if not result.samples:
        return False
    fastest, *others = sorted(result.samples.values(), key=lambda samples: samples.median_us)
    beside = [other.median_us for other in others]
    beside += [statistics.median(raw) for raw in fastest.baselines.values() if raw]
    return any(abs(us / fastest.median_us - 1) < SMALL_GAP for us in beside)


def _call_seconds(result: RaceResult) -> float:
    """One call of every contender."""
    first = next(iter(result.samples.values()))
    us = sum(samples.median_us for samples in result.samples.values())
    return (us + sum(statistics.median(raw) for raw in first.baselines.values() if raw)) / 1e6


def _joined_samples(first: SampleSet, second: SampleSet) -> SampleSet:
    """The samples of both; the conditions are the first's, but for what either throttled or left out."""
    baselines = {name: raw + second.baselines.get(name, ()) for name, raw in first.baselines.items()}
    conditions = first.conditions | {"swapped": True}
    one, two = first.conditions, second.conditions
    if "throttled" in one:
        conditions["throttled"] = sorted({*one["throttled"], *two.get("throttled", ())})
    if "left_out" in one or "left_out" in two:
        conditions["left_out"] = one.get("left_out", {}) | two.get("left_out", {})
    return SampleSet(first.samples_us + second.samples_us, first.reason, baselines, conditions)
