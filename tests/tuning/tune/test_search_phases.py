"""The phases and events of a search, its batches, its budget, and a cancellation."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, hashed_us
from tests.tuning.build.heard_builds import HeardBuilds
from tests.tuning.tune.small_search import GEMM, REGIME, candidates, default, tuning
from tirgemm import Budget, Config, Gemm
from tirgemm.errors import (
    Cancelled,
    VerificationFailed,
)
from tirgemm.events import BatchProposed, CandidateRecorded, Event, PhaseEntered
from tirgemm.hardware import named_device
from tirgemm.tuning import search_loop
from tirgemm.tuning.build.prepared import PreparedBuilds
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")


def test_cancelling_ends_it_at_once_and_keeps_the_records() -> None:
    bench, cancel = FakeBench(), threading.Event()

    def fate(_: Config) -> str:
        if len(bench.fake.evaluated) <= 4:
            return "right"
        threading.Timer(0.2, cancel.set).start()
        return "blocks"

    bench.fate = fate
    events: list[str] = []
    with pytest.raises(Cancelled):
        tuning(bench, cancel=cancel, on_event=lambda event: events.append(event.kind)).run()
    assert events[-1] == "cancelled"
    assert len(candidates(bench)) == 5


def test_the_build_of_a_fallback_is_kept_for_the_job_that_improves_it() -> None:
    builders, bench = HeardBuilds(), FakeBench()
    bench.prepared = PreparedBuilds(bench.device, builders)
    fallback = tuning(bench).fallback()
    kept = bench.prepared.take(GEMM, fallback.config)
    assert kept is not None
    assert str(fallback.config) in kept.result().sources.values()
    assert builders.builds == []
    refused = FakeBench(lambda _: "uncertified")
    refused.prepared = PreparedBuilds(bench.device, builders)
    with pytest.raises(VerificationFailed):
        tuning(refused).fallback()
    assert refused.prepared.take(GEMM, fallback.config) is None, "what is wrong is not raced"


def test_the_budget_of_seconds_ends_the_search_and_still_serves(ahead: list[float]) -> None:
    bench = FakeBench()

    def slow(config: Config) -> float:
        ahead[0] += 50.0
        return hashed_us(config)

    bench.us = slow
    record = tuning(bench, trials=10_000, seconds=1000.0).run()
    assert record.role == "tuned"
    assert 1 < len(candidates(bench)) < 200


def test_events_tell_the_story_in_order() -> None:
    bench = FakeBench()
    events: list[Event] = []
    tuning(bench, on_event=events.append).run()
    kinds = [event.kind for event in events if event.kind != "phase"]
    assert kinds[:3] == ["started", "fallback", "batch"]
    assert kinds[-2:] == ["selected", "done"]
    assert kinds.count("candidate") == 11
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_phases_are_told_in_order_and_the_search_s_with_the_seconds_that_are_left() -> None:
    bench = FakeBench()
    events: list[Event] = []
    tuning(bench, on_event=events.append).run()
    phases = [event for event in events if isinstance(event, PhaseEntered)]
    names = [event.phase for event in phases]
    # The default is the first of the twelve; eleven are left: two batches of two, seven of one.
    search = ["building", "measuring"] * 9
    assert names == ["default", "starting", *search, "choosing", "certifying"]
    timed = [event.seconds_left is not None for event in phases]
    assert timed == [False, False, *[True] * len(search), False, False]
    standings = [event.standing for event in events if isinstance(event, CandidateRecorded)]
    assert [standing.tried for standing in standings] == list(range(2, 13))
    assert {standing.default_us for standing in standings} == {hashed_us(default(bench))}
    best = [standing.best_us for standing in standings if standing.best_us is not None]
    assert len(best) == len(standings)
    assert best == sorted(best, reverse=True)


def test_a_fallback_that_was_built_before_is_built_again_beside_the_search_and_not_behind_it() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_90a").with_(uuid="GPU-0", index=0)
    gemm = Gemm.parse("64x64x64:f16:nt")
    known = Tuning(gemm, bench, REGIME, families=["simt"]).fallback()
    bench.built.clear()
    evaluate, begun = bench.fake.evaluate, list[bool]()

    def noted(*arguments: Any, **options: Any) -> Any:
        begun.append(known.config in bench.built)
        return evaluate(*arguments, **options)

    measurer: Any = bench.fake
    measurer.evaluate = noted
    Tuning(gemm, bench, REGIME, Budget(8, 600.0), families=["simt"]).run()
    assert begun
    assert all(begun)
    assert bench.built.count(known.config) == 1


def test_on_a_gpu_building_ahead_is_no_phase_of_its_own() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_90a").with_(uuid="GPU-0", index=0)
    phases: list[str] = []

    def on_event(event: Event) -> None:
        phases.extend([event.phase] if isinstance(event, PhaseEntered) and event.phase else [])

    gemm = Gemm.parse("64x64x64:f16:nt")
    record = Tuning(gemm, bench, REGIME, Budget(20, 600.0), families=["simt"], control=Control(on_event)).run()
    assert (record.role, record.trials, record.timings.ended) == ("tuned", 20, "trials")
    assert phases == ["default", "starting", "building", "measuring", "choosing", "certifying"]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_batch_is_at_most_a_quarter_of_the_trials_left_however_many_processes_build(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_loop, "SOON_SECONDS", 60.0)  # so that nothing is measured while the search proposes
    bench = FakeBench()
    bench.pool.processes = 16
    if kind == "cuda":
        bench.device = named_device("sm_90a").with_(uuid="GPU-0", index=0)
    events: list[Event] = []
    Tuning(
        Gemm.parse("64x64x64:f32:nt"),  # which no trained model covers: one learns within the search
        bench,
        REGIME,
        Budget(33, 600.0, Effort.EXHAUSTIVE),  # which goes on whatever it expects
        families=["simt" if kind == "cuda" else "x86"],
        control=Control(events.append),
    ).run()
    left, learnt = 32, []
    for number, event in enumerate(events):
        if isinstance(event, BatchProposed):
            assert 1 <= event.proposed <= max(1, left // 4)
            left -= event.proposed
            learnt.append(sum(isinstance(earlier, CandidateRecorded) for earlier in events[:number]))
    assert left == 0
    # A result counts before the next batch, and on a GPU the next batch does not wait for all of them.
    assert learnt[:4] == ([0, 8, 14, 18] if kind == "cpu" else [0, 4, 7, 9])


def test_the_first_batch_after_a_rule_prunes_has_its_sentence_and_no_other_has() -> None:
    bench = FakeBench()
    events: list[Event] = []
    tuning(bench, on_event=events.append).run()
    batches = [event for event in events if isinstance(event, BatchProposed)]
    told = [rule for batch in batches for rule in batch.sentences]
    assert sorted(told) == sorted(set(batches[-1].pruned)), "each rule once, while the search runs"
    assert all(rule in batch.pruned and sentence for batch in batches for rule, sentence in batch.sentences.items())
