"""A search that its user stops: what it ends with, what it keeps, and what it gives up at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, hashed_us
from tests.present_timings import timing_of
from tests.tuning.tune.small_search import GEMM, REGIME, candidates, default, tuning
from tirgemm import Config, Gemm
from tirgemm.errors import Cancelled, Interrupted
from tirgemm.events import Event, FallbackStored, Phase, PhaseEntered
from tirgemm.timings import NotTimed
from tirgemm.tuning.budget import covers
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records import KernelRecord, Status
from tirgemm.tuning.set_tuning import tuned_record

pytestmark = pytest.mark.usefixtures("all_scored")


def stopped(bench: FakeBench, after: int, **options: Any) -> tuple[KernelRecord, list[Event]]:
    """A tuning that is stopped, as by Ctrl-C, while the candidate behind the first ``after`` is measured."""
    stop = threading.Event()

    def fate(_: Config) -> str:
        if len(bench.fake.evaluated) <= after:
            return "right"
        stop.set()
        return "blocks"

    bench.fate = fate
    events: list[Event] = []
    search = tuning(bench, stop=stop, on_event=events.append, **options)
    record = search.run()
    return record, events


def test_a_stopped_search_ends_with_the_best_so_far_certified_and_says_so() -> None:
    bench = FakeBench()
    record, events = stopped(bench, after=4)
    tried = candidates(bench)
    assert len(tried) == 5, "the default, and four; the one that ran is given up"
    assert record.config == min((c.config for c in tried), key=hashed_us)
    assert (record.role, record.trials, record.interrupted) == ("tuned", 5, True)
    assert record.certificate is not None
    assert record.certificate.passed
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) == record
    assert [event.kind for event in events][-2:] == ["selected", "done"]
    assert bench.abandoned == 1, "builds that wait or run are given up"
    assert set(timing_of(record.timings).baselines) == {"default"}, "baselines are not measured while the user waits"
    assert isinstance(record.timings.regimes["isolated"], NotTimed), "nor is the other regime"


@pytest.mark.parametrize("phase", [Phase.CHOOSING, Phase.CERTIFYING])
def test_a_search_that_is_stopped_in_its_last_stages_has_the_next_request_choose_in_full(phase: Phase) -> None:
    bench, stop = FakeBench(), threading.Event()
    search = tuning(bench, stop=stop)
    search.fallback()

    def at(event: Event) -> None:
        if isinstance(event, PhaseEntered) and event.phase is phase:
            stop.set()

    hurried = tuning(bench, stop=stop, on_event=at).run()
    assert (hurried.interrupted, covers(hurried, search.budget)) == (True, False)
    bench.fake.evaluated.clear()
    full = tuned_record(tuning(bench))
    assert (full.timings.ended, full.trials, bench.fake.evaluated) == ("trials", hurried.trials, [])
    assert "numpy_f32" in timing_of(full.timings).baselines
    assert covers(full, search.budget)


def test_what_was_measured_is_not_built_again_for_selection() -> None:
    for after in (4, 100):
        bench = FakeBench()
        if after == 100:
            tuning(bench).run()
        else:
            stopped(bench, after)
        assert len(bench.built) == len(set(bench.built))


def test_a_candidate_that_was_given_up_is_tried_again_and_not_taken_for_a_crash() -> None:
    bench = FakeBench()
    for _ in range(3):
        stopped(bench, after=len(bench.fake.evaluated))
    bench.fate = lambda _: "right"
    tuning(bench).run()
    assert {c.status for c in candidates(bench)} == {Status.MEASURED}
    assert {c.attempt for c in candidates(bench)} == {1}


def test_a_search_that_is_stopped_before_it_begins_ends_with_the_certified_default() -> None:
    bench, stop = FakeBench(), threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, FallbackStored):
            stop.set()

    record = tuning(bench, stop=stop, on_event=on_event).run()
    assert record.config == default(bench)
    assert record == bench.store.kernel(GEMM, bench.device.key, REGIME)
    assert record.certificate is not None
    assert len(candidates(bench)) == 1


def test_a_search_that_is_stopped_before_its_default_is_certified_has_nothing_to_end_with() -> None:
    stop, unending = threading.Event(), Future[Any]()

    class Endless(FakeBench):
        """Begins a build that does not end, and is told to stop."""

        def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
            del gemm, config, urgent
            stop.set()
            return unending

    bench = Endless()
    events: list[str] = []
    with pytest.raises(Interrupted, match="stopped before its first kernel was certified"):
        tuning(bench, stop=stop, on_event=lambda event: events.append(event.kind)).run()
    assert events[-1] == "cancelled"
    assert unending.cancelled()
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) is None


def test_a_search_that_is_stopped_with_nothing_new_keeps_the_kernel_that_was_there() -> None:
    bench = FakeBench()
    first = tuning(bench).run()
    built = len(bench.built)
    stop = threading.Event()
    stop.set()
    assert tuning(bench, trials=50, stop=stop).run() == first
    assert len(bench.built) == built


def test_proposing_is_given_up_at_once() -> None:
    bench, stop = FakeBench(), threading.Event()
    asked: list[bool] = []
    search = tuning(bench, trials=40, stop=stop)

    def requested(end: Any) -> bool:
        asked.append(True)
        if len(asked) == 300:  # in the middle of a round
            stop.set()
        return bool(end.cancel.is_set() or end.stop.is_set())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(search.end), "requested", property(requested))
        record = search.run()
    assert len(asked) < 310
    assert record.config == default(bench)


def test_a_cancelled_search_ends_without_a_kernel_even_where_it_is_stopped_too() -> None:
    bench, cancel = FakeBench(), threading.Event()
    cancel.set()
    with pytest.raises(Cancelled) as raised:
        tuning(bench, cancel=cancel, stop=cancel).run()
    assert not isinstance(raised.value, Interrupted)
