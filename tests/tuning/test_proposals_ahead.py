"""On a GPU a search measures what is built while it makes its next proposals, alone and in a sweep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, gpu_bench
from tests.observed_calls import observed
from tests.waiting import PATIENCE_S
from tirgemm import Budget, Gemm
from tirgemm.config import Config
from tirgemm.errors import Cancelled
from tirgemm.events import CandidateRecorded, Event
from tirgemm.tuning import search_loop
from tirgemm.tuning.search.search import Proposal, Search
from tirgemm.tuning.search_loop import SearchLoop
from tirgemm.tuning.sweep import Outcome, Sweep
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM, OTHER = Gemm.parse("64x64x64:f16:nt"), Gemm.parse("64x64x128:f16:nt")


class Results:
    """How many candidates of each problem are recorded."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: dict[Gemm, int] = {}

    def of(self, gemm: Gemm) -> int:
        return self._counts.get(gemm, 0)

    def hear(self, gemm: Gemm) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            if isinstance(event, CandidateRecorded):
                with self._changed:
                    self._counts[gemm] = self.of(gemm) + 1
                    self._changed.notify_all()

        return on_event

    def wait(self, gemm: Gemm, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.of(gemm) >= count, PATIENCE_S), "nothing is measured meanwhile"


def tuning(bench: FakeBench, gemm: Gemm = GEMM, **control: Any) -> Tuning:
    return Tuning(gemm, bench, "sustained", Budget(40, 600.0), families=["simt"], control=Control(**control))


@pytest.fixture
def bench() -> FakeBench:
    return gpu_bench()


@pytest.fixture(autouse=True)
def never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_loop, "SOON_SECONDS", 0.0)


def asked(monkeypatch: pytest.MonkeyPatch, second: Callable[[Search], object]) -> list[int]:
    """How many results the search of GEMM knew at each of its asks; ``second`` is called at the second, before it."""
    known: list[int] = []
    ask = Search.ask

    def noted(search: Search, count: int) -> list[Proposal]:
        if search.gemm == GEMM:
            known.append(search.tried)
            if len(known) == 2:
                second(search)
        return ask(search, count)

    monkeypatch.setattr(Search, "ask", noted)
    return known


def test_what_is_built_is_measured_while_the_search_proposes(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    results, meanwhile = Results(), []

    def second(search: Search) -> None:
        results.wait(GEMM, search.tried + 2)
        meanwhile.append(search.tried)

    known = asked(monkeypatch, second)
    record = tuning(bench, on_event=results.hear(GEMM)).run()
    assert meanwhile == [known[1]], "the search is told of nothing while it proposes"
    assert known[2] >= known[1] + 2
    assert (record.timings.ended, record.trials) == ("trials", 40)
    assert results.of(GEMM) == 39, "all but the default, which was measured before"


@pytest.mark.parametrize(
    ("in_flight", "tried", "learns", "awaited", "at_once", "wants"),
    [
        (12, 16, False, 4, None, True),
        (16, 40, False, 4, None, True),
        (17, 40, False, 4, None, False),
        (12, 15, False, 4, None, False),
        (12, 16, True, 4, None, False),
        (12, 16, False, 4, 4, False),
        (12, 15, True, 0, 4, True),
    ],
)
def test_a_model_that_learns_nothing_is_asked_before_half_of_the_last_batch_is_back(
    in_flight: int, tried: int, learns: bool, awaited: int, at_once: int | None, wants: bool, bench: FakeBench
) -> None:
    """Where one problem is searched: of several others fill the time."""
    search: Any = SimpleNamespace(model=SimpleNamespace(learns=learns), tried=tried)
    loop = SearchLoop(tuning(bench), search, trials=20)
    loop.awaited, loop.at_once = awaited, at_once
    loop.building = {Future(): Proposal(Config("simt", ()), None) for _ in range(in_flight)}
    with ThreadPoolExecutor(1) as loop.asker:
        assert loop.wants_proposals() == wants


def test_a_cancel_ends_a_search_that_proposes(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = threading.Event()
    asked(monkeypatch, lambda _: cancel.set())
    with pytest.raises(Cancelled):
        tuning(bench, cancel=cancel).run()


def test_proposals_that_take_long_are_waited_for_in_silence(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which a worker that hangs is known, as every look at the cancel is a sign of life."""
    monkeypatch.setattr(search_loop, "SILENT_AFTER_SECONDS", -1.0)
    looks: list[int] = []
    go_on = threading.Event()
    asked(monkeypatch, lambda _: go_on.wait(PATIENCE_S))
    searching = tuning(bench)
    look = searching.raise_if_cancelled
    monkeypatch.setattr(searching, "raise_if_cancelled", observed(look, lambda: looks.append(0)))
    waited: list[int] = []

    def wait(futures: Any, timeout: float | None = None) -> Any:
        if timeout is None and not go_on.is_set():
            waited.append(len(looks))
            go_on.set()
        return futures_wait(futures, timeout)

    monkeypatch.setattr(search_loop, "wait", wait)
    assert searching.run().trials == 40
    assert len(waited) == 1


def test_a_search_that_cannot_propose_ends_with_its_reason(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def second(_: Search) -> None:
        raise RuntimeError("the model is gone")

    asked(monkeypatch, second)
    with pytest.raises(RuntimeError, match="the model is gone"):
        tuning(bench).run()


def test_what_is_proposed_after_the_time_is_over_is_not_built(
    bench: FakeBench, ahead: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    def second(_: Search) -> None:
        ahead[0] += 1000.0
        built.append(len(bench.built))

    known = asked(monkeypatch, second)
    record = tuning(bench).run()
    assert record.timings.ended == "seconds"
    assert len(known) == 2
    assert len(set(bench.built)) <= built[0]


def test_a_sweep_measures_other_problems_while_one_search_proposes(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, meanwhile, before = Results(), [], [0]
    propose = SearchLoop.propose

    def begun(loop: SearchLoop) -> None:
        if loop.tuning.gemm == GEMM and loop.asking is None:
            before.append(results.of(OTHER))  # here: the thread that proposes may begin late
        propose(loop)

    def second(search: Search) -> None:
        results.wait(OTHER, before[-1] + 1)
        meanwhile.append(search.tried)

    monkeypatch.setattr(SearchLoop, "propose", begun)
    known = asked(monkeypatch, second)
    bench.pool.processes = 1
    tunings = [tuning(bench, gemm, on_event=results.hear(gemm)) for gemm in (GEMM, OTHER)]
    outcomes: list[Outcome] = []
    Sweep(tunings, seconds=600.0, on_outcome=outcomes.append).run()
    assert meanwhile == [known[1]]
    assert all(outcome.record is not None for outcome in outcomes)
    assert [results.of(gemm) for gemm in (GEMM, OTHER)] == [40, 40]
