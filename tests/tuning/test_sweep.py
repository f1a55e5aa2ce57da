"""The scheduler over many searches: who comes next, resuming, failures, stopping. Nothing here is a real time."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench
from tirgemm import Budget, Config, Gemm
from tirgemm.errors import BuildersUnusable, DoesNotFit
from tirgemm.events import CandidateRecorded, Event
from tirgemm.gemm import Regime
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.search.collection import configs_to_collect
from tirgemm.tuning.search.search import Search
from tirgemm.tuning.search.similar_problems import candidates_of_nearest, nearest
from tirgemm.tuning.sweep import Outcome, Sweep
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")

STALE, GAINING, THIRD = (Gemm.parse(text) for text in ("61x67x71:f16:nt", "63x65x127:f16:nt", "7x65x127:f16:nt"))
REGIME: Regime = "sustained"


class Bench(FakeBench):
    """``order`` has the problem of every evaluation; each trial of GAINING is 5 % faster than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[Gemm] = []
        self.wrong: Gemm | None = None
        evaluate = self.fake.evaluate

        def noted(package: bytes, regime: str, **options: Any) -> Any:
            gemm = self.fake.manifest(package).gemm
            self.order.append(gemm)
            verification, samples = evaluate(package, regime, **options)
            if gemm == self.wrong:
                return replace(verification, passed=False), None
            if samples is not None:
                us = 100 * 0.95 ** self.order.count(GAINING) if gemm == GAINING else 50.0
                samples = SampleSet((us,) * 5)
            return verification, samples

        measurer: Any = self.fake
        measurer.evaluate = noted


def swept(bench: FakeBench, *gemms: Gemm, trials: int = 8, seconds: float = 600.0, **options: Any) -> list[Outcome]:
    tunings = [Tuning(gemm, bench, REGIME, Budget(trials, max(600.0, seconds)), **options) for gemm in gemms]
    outcomes: list[Outcome] = []
    Sweep(tunings, seconds=seconds, on_outcome=outcomes.append).run()
    return outcomes


def test_every_problem_is_searched_and_answered_from_the_store() -> None:
    bench = Bench()
    outcomes = {outcome.gemm: outcome.record for outcome in swept(bench, STALE, GAINING, THIRD)}
    assert set(outcomes) == {STALE, GAINING, THIRD}
    assert Counter(bench.order) == {STALE: 8, GAINING: 8, THIRD: 8}
    for gemm, record in outcomes.items():
        assert record is not None
        assert (record.role, record.trials, record.timings.ended) == ("tuned", 8, "trials")
        assert bench.store.kernel(gemm, bench.device.key, REGIME) == record


def test_given_configs_are_measured_and_no_kernel_is_selected() -> None:
    bench = Bench()
    tunings = [Tuning(gemm, bench, REGIME, Budget(8, 600.0)) for gemm in (STALE, GAINING)]
    configs = {t.gemm: configs_to_collect(t.gemm, bench.device, REGIME, t.families, count=3) for t in tunings}
    outcomes: list[Outcome] = []
    Sweep(tunings, seconds=600.0, on_outcome=outcomes.append, configs=configs).run()
    assert {(outcome.gemm, outcome.record, outcome.error) for outcome in outcomes} == {
        (STALE, None, None),
        (GAINING, None, None),
    }
    for gemm, wanted in configs.items():
        assert {c.config for c in bench.store.candidates(gemm, bench.device.key, REGIME)} == set(wanted)
        assert bench.store.kernel(gemm, bench.device.key, REGIME) is None
    bench.order.clear()
    Sweep([Tuning(STALE, bench, REGIME, Budget(8, 600.0))], seconds=600.0, configs=configs).run()
    assert not bench.order  # what is recorded is not measured again


def test_the_next_batch_goes_where_a_gain_is_likeliest() -> None:
    bench = Bench()
    bench.pool.processes = 1
    swept(bench, STALE, GAINING, trials=12)
    # A first batch of three each; after a second one without gain the other has all of its turns.
    assert Counter(bench.order[:6]) == {STALE: 3, GAINING: 3}
    assert Counter(bench.order[6:17]) == {STALE: 2, GAINING: 9}


def test_a_sweep_goes_on_from_the_store() -> None:
    bench = Bench()
    swept(bench, STALE, GAINING, trials=4)
    bench.order.clear()
    swept(bench, STALE, GAINING, trials=6)
    assert Counter(bench.order) == {STALE: 2, GAINING: 2}
    recorded = bench.store.candidates(STALE, bench.device.key, REGIME)
    assert sum(candidate.status is Status.MEASURED for candidate in recorded) == 6


def test_a_problem_that_fails_costs_itself_alone() -> None:
    bench = Bench()
    bench.wrong = STALE
    outcomes = {outcome.gemm: outcome for outcome in swept(bench, STALE, GAINING, trials=4)}
    assert outcomes[STALE].record is None
    assert f"no candidate of {STALE}" in str(outcomes[STALE].error)
    assert outcomes[GAINING].record is not None


def test_a_machine_that_cannot_build_for_one_problem_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    build, lacking = bench.build, BuildersUnusable("no space left")

    def full(gemm: Gemm, config: Config, **options: Any) -> Future[Binary]:
        future = build(gemm, config, **options)
        if gemm == STALE:
            future = Future()
            future.set_exception(lacking)
        return future

    monkeypatch.setattr(bench, "build", full)
    outcomes = {outcome.gemm: outcome for outcome in swept(bench, STALE, GAINING, trials=4)}
    assert (outcomes[STALE].record, outcomes[STALE].error) == (None, lacking)
    assert bench.store.candidates(STALE, bench.device.key, REGIME) == []
    assert outcomes[GAINING].record is not None


def test_a_problem_whose_timing_does_not_fit_leaves_the_others_theirs() -> None:
    bench, large = Bench(), DoesNotFit("timing needs 2 TB")
    evaluate = bench.measurer.evaluate

    def full(package: bytes, regime: str, **options: Any) -> Any:
        if bench.fake.manifest(package).gemm == STALE:
            raise large
        return evaluate(package, regime, **options)

    bench.measurer.evaluate = full
    outcomes = {outcome.gemm: outcome for outcome in swept(bench, STALE, GAINING, trials=4)}
    assert (outcomes[STALE].record, outcomes[STALE].error) == (None, large)
    assert bench.store.candidates(STALE, bench.device.key, REGIME) == []
    assert outcomes[GAINING].record is not None


def test_a_sweep_that_is_stopped_ends_with_the_best_so_far() -> None:
    bench, stop = Bench(), threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, CandidateRecorded) and len(bench.order) == 5:
            stop.set()

    outcomes = swept(bench, STALE, GAINING, trials=8, control=Control(on_event, stop=stop))
    assert len(bench.order) == 5
    assert {outcome.gemm for outcome in outcomes if outcome.record is not None} == {STALE, GAINING}
    assert all(outcome.record.interrupted for outcome in outcomes if outcome.record)


def test_the_seconds_bound_all_searches_together(ahead: list[float]) -> None:
    bench = Bench()
    measured = bench.measurer.evaluate

    def slow(*arguments: Any, **options: Any) -> Any:
        ahead[0] += 50.0
        return measured(*arguments, **options)

    bench.measurer.evaluate = slow
    outcomes = swept(bench, STALE, GAINING, trials=10_000, seconds=2000.0)
    assert [outcome.record is not None for outcome in outcomes] == [True, True]
    assert {o.record.timings.ended for o in outcomes if o.record} == {"seconds"}


def test_a_problem_for_which_there_was_no_time_has_its_default() -> None:
    bench = Bench()
    outcomes = swept(bench, STALE, GAINING, seconds=1e-9)
    assert not bench.order
    assert [outcome.record.role for outcome in outcomes if outcome.record] == ["fallback", "fallback"]


def test_a_search_learns_from_the_similar_problems_of_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[tuple[Gemm, Gemm]] = []

    def learn(search: Search, candidates: list[Candidate]) -> None:
        learnt.extend((search.gemm, candidate.gemm) for candidate in candidates)

    monkeypatch.setattr(Search, "learn", learn)
    swept(Bench(), STALE, GAINING, trials=4)
    assert Counter(learnt) == {(STALE, GAINING): 4, (GAINING, STALE): 4}


def test_the_nearest_problems_are_of_the_same_sizes_then_of_the_same_types_and_layout() -> None:
    texts = ("4096x65x127:f16:nt", "60x65x127:f16:nt", "63x65x127:f16:nn", "62x65x127:f16:nn")
    far, near, same, other = (Gemm.parse(text) for text in texts)
    assert nearest(GAINING, [other, far, GAINING, near, same]) == [same, near, far, other]
    config = Config("x86", ())
    candidates = [Candidate(g, "d", REGIME, config, Status.MEASURED) for g in (far, near, far, GAINING)]
    assert [c.gemm for c in candidates_of_nearest(GAINING, candidates, 3)] == [GAINING, near, far]
