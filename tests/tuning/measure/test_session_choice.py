"""How a GPU session tunes a baseline before it is timed, on a GPU that is only a clock."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.rounds import StoppingRule
from tirgemm.tuning.measure import cuda_session
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.tuned_baseline import BaselineOption, Refused
from tirgemm.tuning.measure.cuda_session import CudaSession

SETS = 4


class FakeGpu:
    """Calls move its clock on; a graph is what its calls took together."""

    ordinal, stream = 0, 0

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing = False

    def event(self) -> dict[str, float]:
        return {}

    def record(self, event: dict[str, float]) -> None:
        assert not self.capturing
        event["us"] = self.now

    def microseconds(self, first: dict[str, float], second: dict[str, float]) -> float:
        return second["us"] - first["us"]

    def synchronize(self) -> None:
        assert not self.capturing

    def capture(self, work: Callable[[], None]) -> float:
        before, self.capturing = self.now, True
        try:
            work()
        finally:
            self.capturing = False
        took, self.now = self.now - before, before
        return took

    def driver(self, name: str, *arguments: Any) -> None:
        if name == "cuGraphLaunch":
            self.now += arguments[0] + 4.0  # a launch is not free


class FakeBaseline:
    """Candidates by what a call of each takes, in microseconds; None refuses."""

    def __init__(self, gpu: FakeGpu, times: list[float | None], label: bool = True) -> None:
        self.gpu, self.times, self.label = gpu, times, label
        self.ran: list[tuple[int, int]] = []
        self.entered = 0

    @contextlib.contextmanager
    def _context(self) -> Any:
        self.entered += 1
        yield
        self.entered -= 1

    def context(self) -> Any:
        return self._context()

    def candidates(self, _sets: list[Any]) -> list[BaselineOption]:
        return [BaselineOption({"number": i} if self.label else {}, self._calls(i)) for i in range(len(self.times))]

    def _calls(self, i: int) -> Callable[[int], Callable[[], None]]:
        def call(at: int) -> Callable[[], None]:
            assert self.entered

            def run() -> None:
                assert self.entered
                us = self.times[i]
                if us is None:
                    raise Refused("not this one")
                self.ran.append((i, at))
                self.gpu.now += us

            return run

        return call


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(cuda_session, "call", fake.driver)
    monkeypatch.setattr(cuda_session, "_FINAL", StoppingRule(4, 0.0))
    return fake


def session_on(gpu: FakeGpu) -> Any:
    session: Any = object.__new__(CudaSession)
    session._gpu, session._alive = gpu, lambda: None
    session._module = SimpleNamespace(launch=lambda *_: None)
    session._evict = lambda: None
    return session


def library(gpu: FakeGpu, baseline: FakeBaseline, regime: str) -> tuple[Any, dict[str, Any]]:
    chosen: dict[str, Any] = {}
    operands = SimpleNamespace(views=[{}] * SETS)
    return session_on(gpu)._library("theirs", baseline, operands, regime, chosen), chosen


@pytest.mark.parametrize("regime", ["sustained", "isolated"])
def test_the_fastest_candidate_becomes_the_contender_and_all_are_reported(gpu: FakeGpu, regime: str) -> None:
    baseline = FakeBaseline(gpu, [30.0, None, 10.0, 12.0, 500.0, 11.0])
    contender, chosen = library(gpu, baseline, regime)
    actual = chosen["theirs"]
    assert (actual["chosen"], actual["label"], actual["candidates"]) == (2, {"number": 2}, 6)
    assert set(actual["finals_us"]) == {"2", "3", "5"}
    assert actual["screened_us"][1] is None
    assert actual["screened_us"][2] == pytest.approx(10, rel=0.02)
    assert actual["finals_us"]["5"] == pytest.approx(11, rel=0.02)
    assert actual["refused"] == {"1": "not this one"}
    baseline.ran.clear()
    assert len(contender.calls) == SETS
    with contender.context():
        for run in contender.calls:
            run()
    assert baseline.ran == [(2, i) for i in range(SETS)]


def test_candidates_are_tried_once_for_a_problem_and_regime(gpu: FakeGpu) -> None:
    baseline = FakeBaseline(gpu, [30.0, 10.0, 12.0])
    chosen: dict[str, Any] = {}
    operands = SimpleNamespace(views=[{}] * SETS)
    session = session_on(gpu)
    session._library("theirs", baseline, operands, "sustained", chosen)
    baseline.ran.clear()
    again = session._library("theirs", baseline, operands, "sustained", chosen)
    assert baseline.ran == []
    with again.context():
        again.calls[0]()
    assert baseline.ran == [(1, 0)]


def test_screening_rotates_the_operands_and_spares_what_is_far_behind(gpu: FakeGpu) -> None:
    baseline = FakeBaseline(gpu, [100.0, 90.0, 80.0, 9000.0])
    library(gpu, baseline, "sustained")
    assert sum(i == 3 for i, _ in baseline.ran) == 2  # once to load its code, once to see how slow it is
    first = [at for i, at in baseline.ran if i == 0][:4]
    assert [(b - a) % SETS for a, b in itertools.pairwise(first)] == [1, 1, 1]


def test_a_baseline_without_candidates_to_choose_from_is_not_tuned(gpu: FakeGpu) -> None:
    contender, chosen = library(gpu, FakeBaseline(gpu, [5.0], label=False), "sustained")
    assert chosen == {}
    assert len(contender.calls) == SETS
    assert gpu.now == 0


def test_a_baseline_whose_candidates_all_refuse_is_absent(gpu: FakeGpu) -> None:
    with pytest.raises(BaselineUnavailable, match="not this one"):
        library(gpu, FakeBaseline(gpu, [None, None]), "isolated")


def test_the_spin_outlasts_the_queueing_of_slow_hosts_within_a_limit(gpu: FakeGpu) -> None:
    session, spun = session_on(gpu), []
    session._module = SimpleNamespace(launch=lambda _stream, _name, _grid, _block, ns: spun.append(ns.value))
    for host_ns in (1_000, 100_000, 10**9):
        session._spin(host_ns)
    assert spun == [50_000, 300_000, 1_000_000]


@pytest.mark.parametrize(("us", "graphs", "samples"), [(250_000.0, 0, 1), (99_000.0, 1, 2), (40.0, 1, 2)])
def test_a_call_that_takes_long_is_its_own_sample(gpu: FakeGpu, us: float, graphs: int, samples: int) -> None:
    """Two calls say so; there is no graph, no warm call and none that does not count."""
    baseline = FakeBaseline(gpu, [us])
    session = session_on(gpu)
    kept: list[Any] = []
    candidate = baseline.candidates([])[0]
    contender = cuda_session._contender(baseline.context, candidate, range(SETS))
    block, launches = session._block(contender, "sustained", None, kept)
    assert len(kept) == graphs
    warmed = len(baseline.ran)
    taken = block()
    assert len(taken) == samples
    if not graphs:
        assert (warmed, launches, len(baseline.ran)) == (2, 0, 3)
        assert taken == [us]
    assert session._warm(contender)[0] == us


def test_a_first_call_that_loads_code_is_no_long_one(gpu: FakeGpu) -> None:
    baseline = FakeBaseline(gpu, [10.0])
    contender = cuda_session._contender(baseline.context, baseline.candidates([])[0], range(SETS))
    first = contender.calls[0]

    def loads() -> None:
        gpu.now += 400_000.0
        first()
        contender.calls[0] = first

    contender.calls[0] = loads
    kept: list[Any] = []
    session_on(gpu)._block(contender, "sustained", None, kept)
    assert len(kept) == 1
