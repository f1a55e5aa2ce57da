"""Events of a tuning that its watchers need: the queue of builds, clock and power, the finalists' race."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, hashed_us
from tirgemm import Budget, Config, Gemm
from tirgemm.events import BatchProposed, BuildsCounted, CandidateRecorded, Event, FinalistsRaced, PhaseEntered
from tirgemm.families import FAMILIES
from tirgemm.tuning.build import builds_report
from tirgemm.tuning.set_tuning import SetTuning
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM = Gemm.parse("61x67x71:f16:nt")


def told(bench: FakeBench, trials: int) -> list[Event]:
    """The events of a tuning."""
    events: list[Event] = []
    Tuning(GEMM, bench, "sustained", Budget(trials, 600.0), control=Control(events.append)).run()
    return events


def test_the_queue_of_builds_is_told_seldom_but_when_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds_report, "BUILDS_SECONDS", 3600.0)
    events = told(FakeBench(), 12)
    counted = [event for event in events if isinstance(event, BuildsCounted)]
    assert counted
    assert (counted[-1].queued, counted[-1].building, counted[-1].built) == (0, 0, 0)
    assert max(event.built for event in counted) > 0
    batches = sum(isinstance(event, BatchProposed) for event in events)
    assert batches > 1
    # Once as it begins, and whenever nothing is left.
    assert len(counted) <= 1 + batches


def test_every_change_of_the_queue_of_builds_is_told_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds_report, "BUILDS_SECONDS", 0.0)
    counts = [(e.queued, e.building, e.built) for e in told(FakeBench(), 12) if isinstance(e, BuildsCounted)]
    batch = max(built for _, _, built in counts)
    assert counts[: batch + 1] == [(0, 0, built) for built in range(batch, -1, -1)]


def test_a_candidate_says_under_which_clock_and_power_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = {"clock_mhz": 1755, "power_w": 512.5, "throttled": ["power_cap"]}
    bench = FakeBench()
    evaluate = bench.fake.evaluate

    def with_conditions(*args: Any, **options: Any) -> Any:
        verification, samples = evaluate(*args, **options)
        return verification, samples and replace(samples, conditions=conditions)

    monkeypatch.setattr(bench.fake, "evaluate", with_conditions)
    recorded = [event for event in told(bench, 4) if isinstance(event, CandidateRecorded)]
    assert {(e.clock_mhz, e.power_w, e.throttled) for e in recorded} == {(1755, 512.5, ("power_cap",))}


def test_the_race_tells_each_finalist_beside_the_default_and_why_one_failed() -> None:
    bench = FakeBench()
    first = FAMILIES["x86"].default(GEMM, bench.device, "sustained")
    slow = [first.digest]
    dying: list[str] = []

    def fate(config: Config) -> str:
        if config.digest not in slow and not dying:
            dying.append(config.digest)
        return "dies" if config.digest in dying else "right"

    bench.fate = fate
    bench.us = lambda config: 50.0 if config.digest in slow else 5.0 if config.digest in dying else hashed_us(config)
    raced = next(event for event in told(bench, 8) if isinstance(event, FinalistsRaced))
    entries = {entry.digest: entry for entry in raced.entries}
    assert raced.entries[0].digest == first.digest
    assert (raced.entries[0].median_us, raced.entries[0].ratio) == (50.0, 1.0)
    assert "SIGSEGV" in entries[dying[0]].message
    assert entries[dying[0]].median_us is None
    for entry in raced.entries[1:]:
        if not entry.message:
            assert entry.median_us is not None
            assert entry.low_us == entry.median_us == entry.high_us
            assert entry.ratio == pytest.approx(50.0 / entry.median_us)
    back = FinalistsRaced.from_json(raced.to_json())
    assert back == raced


def test_a_set_tells_what_is_left_of_its_budget_while_it_searches_and_of_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searching, told = [False], {True: set[float | None](), False: set[float | None]()}
    searched = SetTuning._searched

    def marked(*arguments: Any) -> Any:
        searching[0] = True
        summary = searched(*arguments)
        searching[0] = False
        return summary

    def note(event: Event) -> None:
        if isinstance(event, CandidateRecorded | BatchProposed | PhaseEntered):
            told[searching[0]].add(event.seconds_left)

    monkeypatch.setattr(SetTuning, "_searched", marked)
    gemm = Gemm.parse("4..64x96x64:f32:nt")
    SetTuning(gemm, FakeBench(), "sustained", Budget(4, 600.0), families=["x86"], control=Control(note)).run()
    assert told[True]
    assert all(left is not None and left <= 600.0 for left in told[True])
    assert told[False] == {None}
