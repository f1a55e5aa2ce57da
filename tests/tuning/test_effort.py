"""Efforts: what each tries, why it ends, what it writes down, and how a larger one goes on from a smaller one."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, FakeMeasurer, hashed_us
from tests.helpers.ranking import H200, slow_pingpong, trained_on
from tirgemm import Budget, Config, Gemm
from tirgemm.errors import InvalidRequest
from tirgemm.events import BatchProposed, CandidateRecorded, Event, SearchStarted
from tirgemm.families import family_named
from tirgemm.families.base import rejected
from tirgemm.families.choice import expected_time_us, opening
from tirgemm.families.common.ranking_model import ranking_model, user_file
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Range
from tirgemm.tuning.budget import covers, effort_of
from tirgemm.tuning.effort import Effort, effort_named
from tirgemm.tuning.kernel_set.sizes import searched_sizes
from tirgemm.tuning.measure import yardstick
from tirgemm.tuning.measure.errors import MeasurementCrashed, MeasurementTimedOut
from tirgemm.tuning.measure.yardstick import Yardsticks
from tirgemm.tuning.ranking_training import write
from tirgemm.tuning.records import YARDSTICK, KernelRecord, SampleSet, Status
from tirgemm.tuning.set_tuning import SetTuning
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuned_kernel import TuneRequest
from tirgemm.tuning.tuning_task import Control
from tirgemm.tuning.verify.result import Verification

GEMM = Gemm.parse("61x67x71:f16:nt")
COVERED = Gemm.parse("768x1536x4096:f16:nt")
WGMMA = Wgmma()


def tuned(bench: FakeBench, effort: Effort, gemm: Gemm = GEMM, **bounds: Any) -> tuple[KernelRecord, list[Event]]:
    events: list[Event] = []
    families = ["wgmma"] if bench.device.kind == "cuda" else None
    budget = Budget.of(effort, **bounds)
    return Tuning(gemm, bench, "sustained", budget, families=families, control=Control(events.append)).run(), events


def test_none_builds_and_certifies_the_default_alone() -> None:
    bench = FakeBench()
    record, _ = tuned(bench, Effort.NONE)
    assert (record.role, len(bench.built), bench.fake.evaluated) == ("fallback", 1, [])
    assert record.certificate is not None
    assert record.certificate.passed
    assert covers(record, Budget.of("none"))
    assert not covers(record, Budget.of("quick"))


def test_quick_tries_nine_and_its_last_stages_are_short() -> None:
    bench = FakeBench()
    record, events = tuned(bench, Effort.QUICK)
    assert record.timings.search is not None
    assert (record.role, record.trials, record.timings.ended) == ("tuned", 9, "complete")
    assert record.timings.search.effort == "quick"
    assert record.config == min(bench.built, key=hashed_us)
    assert [e.effort for e in events if isinstance(e, SearchStarted)] == ["quick"]
    assert sum(timed.options.budget_s for timed in bench.fake.timed if timed.options.reason != "search") < 1.0
    assert [timed.options.regime for timed in bench.fake.timed] == ["sustained"] * len(bench.fake.timed)


def test_bounds_hold_for_every_effort() -> None:
    record, _ = tuned(FakeBench(), Effort.QUICK, trials=4)
    assert (record.trials, record.timings.ended) == (4, "trials")
    assert covers(record, Budget.of("quick", trials=4))
    assert not covers(record, Budget.of("quick"))


def test_a_larger_effort_goes_on_from_a_smaller_one_and_answers_it() -> None:
    bench = FakeBench()
    quick, _ = tuned(bench, Effort.QUICK)
    bench.built.clear()
    bench.fake.evaluated.clear()
    more, _ = tuned(bench, Effort.STANDARD, trials=20)
    assert (more.trials, len(bench.fake.evaluated)) == (20, 11), "what quick measured is not measured again"
    assert (effort_of(quick), effort_of(more)) == (Effort.QUICK, Effort.STANDARD)
    assert covers(quick, Budget.of("quick"))
    assert not covers(quick, Budget.of("standard"))
    assert covers(more, Budget.of("quick"))


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """A GPU with a ranking model that has learnt to avoid ping-pong, and times that are so within a thousandth."""
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path))
    write(trained_on(slow_pingpong), user_file(H200.key))

    def us(config: Config) -> float:
        estimate = WGMMA.predict_us(COVERED, config, H200, "sustained") * slow_pingpong(config)
        return estimate * math.exp(random.Random(config.digest).gauss(0.0, 0.001))

    bench = FakeBench(us=us)
    bench.device = H200.with_(uuid="GPU-0", index=0)
    return bench


def test_standard_begins_with_what_the_model_and_the_estimate_put_first_and_ends_when_little_is_expected(
    gpu: FakeBench,
) -> None:
    record, events = tuned(gpu, Effort.STANDARD, COVERED)
    search = record.timings.search
    assert search is not None
    assert (search.ended, search.effort) == ("expected_gain", "standard")
    assert search.expected_gain is not None
    assert 0 <= search.expected_gain < 0.005
    first = opening([WGMMA], COVERED, gpu.device, "sustained", 16)
    assert set(first) >= set(WGMMA.shortlist(COVERED, H200, "sustained", 16))
    assert WGMMA.shortlist(COVERED, H200, "sustained", 1, trained=False)[0] in first
    assert set(gpu.built[: len(first)]) == set(first)
    assert len(set(gpu.built)) == len(gpu.built), "nothing is built twice"
    batches = [event for event in events if isinstance(event, BatchProposed)]
    assert batches[0].proposed == len(first) - 1, "the default was built before the search"
    assert len(first) <= record.trials < 64
    assert all(event.expected_gain is None or event.expected_gain >= 0.005 for event in batches)
    assert covers(record, Budget.of("standard", trials=500), ["wgmma"])
    assert not covers(record, Budget.of("exhaustive"), ["wgmma"])


def test_quick_is_the_models_best_eight_the_default_by_estimates_and_the_fastest_of_these_with_other_cache_policies(
    gpu: FakeBench,
) -> None:
    record, events = tuned(gpu, Effort.QUICK, COVERED)
    first = opening([WGMMA], COVERED, gpu.device, "sustained", 8)
    assert len(first) in (8, 9), "eight where the estimate agrees with the model"
    assert set(gpu.built[: len(first)]) == set(first)
    fastest, variants = min(first, key=gpu.us), gpu.built[len(first) :]
    differing = [{name for name, value in one.knobs if value != fastest[name]} for one in variants]
    assert [len(names) for names in differing] == [1, 1, 1, 1, 1, 2]
    assert set.union(*differing) == {"eviction", "l2_promotion"}
    assert (record.trials, record.timings.ended) == (len(first) + 6, "complete")
    assert record.config == min(gpu.built, key=gpu.us)
    told = [(event.trials, event.of) for event in events if isinstance(event, CandidateRecorded)]
    assert {of for _, of in told} == {record.trials}, "how many there will be is told from the start"


def test_a_quick_search_that_ended_before_the_variants_goes_on_with_them(gpu: FakeBench) -> None:
    usual = gpu.us
    gpu.us = lambda config: usual(config) * (0.5 if config["eviction"] == "first" else 1.0)
    first = len(opening([WGMMA], COVERED, gpu.device, "sustained", 8))
    before, _ = tuned(gpu, Effort.QUICK, COVERED, trials=first)
    assert before.config["eviction"] == "normal"
    gpu.built.clear()
    gpu.fake.evaluated.clear()
    after, _ = tuned(gpu, Effort.QUICK, COVERED)
    assert (after.trials, len(gpu.fake.evaluated)) == (first + 6, 6)
    assert after.config["eviction"] == "first"


def test_quick_of_a_family_without_a_list_tries_what_the_model_puts_first_of_what_is_proposed() -> None:
    simt, gemm = family_named("simt"), Gemm.parse("1024x1024x1024:f16:nt")
    bench = FakeBench(us=lambda config: simt.predict_us(gemm, config, H200, "sustained"))
    bench.device = H200.with_(uuid="GPU-0", index=0)
    model = ranking_model(bench.device)
    assert model is not None
    assert model.covers("simt", gemm, "sustained"), "the model that ships"
    events: list[Event] = []
    tuning = Tuning(
        gemm, bench, "sustained", Budget.of("quick"), families=["simt"], control=Control(events.append), seed=3
    )
    record = tuning.run()
    assert (record.trials, len(set(bench.built)), record.timings.ended) == (9, 9, "complete")
    assert bench.built[0] == simt.default(gemm, bench.device, "sustained")
    proposed = [expected_time_us(simt, config, gemm, bench.device, "sustained", model) for config in bench.built[1:]]
    draw, space = random.Random(1), simt.space(gemm, bench.device)
    drawn = [space.at(draw.randrange(space.size)) for _ in range(400)]
    valid = [config for config in drawn if rejected(simt, gemm, config, bench.device) is None]
    usual = [expected_time_us(simt, config, gemm, bench.device, "sustained", model) for config in valid]
    assert median(proposed) < sorted(usual)[len(usual) // 20], "a random one is as good in one of twenty"


def test_an_unknown_effort_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="effort is 'great'; it must be one of none, quick, standard, exhaustive"):
        effort_named("great")


def test_a_search_on_top_of_another_says_which_effort_was_asked_for() -> None:
    bench = FakeBench()
    first, _ = tuned(bench, Effort.QUICK)
    assert first.timings.search is not None
    assert first.timings.search.asked is None
    more = Tuning(GEMM, bench, "sustained", Budget.of("quick", trials=2).on_top_of(first.trials)).run()
    assert more.timings.search is not None
    assert (more.trials, more.timings.ended) == (first.trials + 2, "trials")
    assert (more.timings.search.effort, more.timings.search.asked) == ("exhaustive", "quick")


class Throttled(FakeMeasurer):
    """Its clock is a third higher at every other measurement, as it is after a pause, for all that runs in it."""

    def evaluate(self, package: bytes, regime: str, **asked: Any) -> tuple[Verification, SampleSet | None]:
        actual, samples = super().evaluate(package, regime, **asked)
        faster = 0.75 if len(self.evaluated) % 2 else 1.0
        assert samples is not None
        beside = {name: self._config(other) for name, other in asked["against"].items()}
        return actual, SampleSet(
            tuple(faster * us for us in samples.samples_us),
            baselines={name: (faster * self.bench.us(config),) * 5 for name, config in beside.items()},
        )


def told_times(events: list[Event]) -> dict[str, float | None]:
    return {event.config: event.us for event in events if isinstance(event, CandidateRecorded)}


def test_a_clock_that_depends_on_what_ran_before_misleads_no_search(gpu: FakeBench) -> None:
    gpu.measurer = Throttled(gpu)
    record, events = tuned(gpu, Effort.STANDARD, Gemm.parse("1024x1536x4096:f16:nt"))
    recorded = {str(config): gpu.us(config) for config in gpu.built}
    told = told_times(events)
    assert len(told) >= 16
    for config, us in told.items():
        assert us == pytest.approx(recorded[config])
    assert gpu.us(record.config) == min(recorded.values())


def test_a_search_that_goes_on_in_another_process_has_the_same_yardstick(gpu: FakeBench) -> None:
    """Its first candidate comes after a pause, too, and is compared with those of the search before."""
    gpu.measurer = Throttled(gpu)
    known, _ = tuned(gpu, Effort.QUICK, COVERED)
    gpu.yardsticks = Yardsticks()
    _, events = tuned(gpu, Effort.STANDARD, COVERED)
    told = told_times(events)
    assert len(told) >= 8
    built = {str(config): gpu.us(config) for config in gpu.built}
    for config, us in told.items():
        assert us == pytest.approx(built[config])
    beside = gpu.yardsticks.get(COVERED, "sustained")
    assert beside is not None
    assert beside.digest == known.config.digest
    sets = [samples for c in gpu.store.candidates(COVERED, gpu.device.key, "sustained") for samples in c.sample_sets]
    later = [samples for samples in sets if samples.conditions.get("yardstick") == known.config.digest]
    assert len(later) >= len(told)
    assert all(YARDSTICK in samples.baselines for samples in later)


class Breaking(FakeMeasurer):
    """Whatever is timed beside another kernel ends the process."""

    def evaluate(self, package: bytes, regime: str, **asked: Any) -> tuple[Verification, SampleSet | None]:
        if asked["against"]:
            raise self.bench.ending
        return super().evaluate(package, regime, **asked)


@pytest.mark.parametrize("ending", [MeasurementCrashed("signal 11"), MeasurementTimedOut("no sign of life")])
def test_a_stored_kernel_that_ends_the_process_is_no_yardstick(gpu: FakeBench, ending: Exception) -> None:
    known, _ = tuned(gpu, Effort.QUICK, COVERED)
    gpu.yardsticks, gpu.measurer, gpu.ending = Yardsticks(), Breaking(gpu), ending
    loop = Tuning(COVERED, gpu, "sustained", Budget.of("standard"), families=["wgmma"]).search_loop()
    loop.propose()
    loop.take_finished_builds(list(loop.building))
    (first,) = loop.measure([gpu.measurer])
    assert first.status is Status.MEASURED, "it is not to blame"
    other = gpu.yardsticks.get(COVERED, "sustained")
    assert other is not None
    assert other.digest == first.config.digest != known.config.digest
    (second,) = loop.measure([gpu.measurer])
    assert second.status in (Status.CRASHED, Status.TIMED_OUT), "what ran before is not to blame"


def test_each_of_many_problems_that_are_searched_at_once_keeps_its_yardstick(
    gpu: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yardstick, "_KEPT", 1)
    gpu.measurer = Throttled(gpu)
    problems = [COVERED, COVERED.with_(m=1024)]
    tunings = [Tuning(gemm, gpu, "sustained", Budget.of("quick"), families=["wgmma"]) for gemm in problems]
    loops = [tuning.search_loop() for tuning in tunings]
    for loop in loops:
        loop.propose()
        loop.take_finished_builds(list(loop.building))
    for _ in range(4):
        for loop in loops:
            loop.measure([gpu.measurer])
    for gemm in problems:
        sets = [taken for c in gpu.store.candidates(gemm, gpu.device.key, "sustained") for taken in c.sample_sets]
        first, *later = (taken.conditions.get("yardstick") for taken in sets)
        assert (first, len(later), len(set(later))) == (None, 3, 1)
        assert None not in later


def test_on_a_cpu_candidates_are_timed_alone() -> None:
    bench = FakeBench()
    bench.measurer = Breaking(bench)
    bench.ending = AssertionError("timed beside another")
    _, events = tuned(bench, Effort.QUICK)
    assert {event.status for event in events if isinstance(event, CandidateRecorded)} == {Status.MEASURED}
    assert len(told_times(events)) >= 7


def test_more_trials_of_a_range_are_as_many_at_each_size_whatever_is_recorded_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, tried, gemm = FakeBench(), Counter[Gemm](), Gemm.parse("4..64x96x64:f32:nt")
    SetTuning(gemm, bench, "sustained", Budget.of("quick", trials=2)).run()
    request = TuneRequest(gemm, bench.device, "sustained", Budget.of("quick", trials=3), retune=True)
    searched = SetTuning._searched

    def noted(tuning: SetTuning, tunings: list[Tuning], *rest: Any) -> Any:
        before = Counter({each.gemm: each.standing().tried for each in tunings})
        assert len(set(before.values())) > 1
        summary = searched(tuning, tunings, *rest)
        tried.update({each.gemm: each.standing().tried for each in tunings})
        tried.subtract(before)
        return summary

    monkeypatch.setattr(SetTuning, "_searched", noted)
    SetTuning(gemm, bench, "sustained", request.budget_on(bench.store)).run()
    assert len(tried) == len(searched_sizes(Range(4, 64)))
    assert set(tried.values()) == {3}
