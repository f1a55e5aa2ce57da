"""Attempts that are interrupted: they are withdrawn, so that nobody's cancel bans a config."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.tuning.tune.small_search import GEMM, candidates, default, tuning
from tirgemm.config import Config
from tirgemm.errors import Cancelled, StoreError
from tirgemm.tuning.records import Candidate, CandidateKey, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.search.search import Proposal

pytestmark = pytest.mark.usefixtures("all_scored")

TRIALS = 3


def measuring_raises(monkeypatch: pytest.MonkeyPatch, bench: FakeBench, error: BaseException) -> list[Config]:
    """Have ``error`` end every measurement but the default's; the configs that were in flight."""
    victims: list[Config] = []
    real = bench.fake.evaluate

    def evaluate(package: bytes, regime: str, **asked: Any) -> object:
        config = bench.fake._config(package)
        if config == default(bench):
            return real(package, regime, **asked)
        victims.append(config)
        raise error

    monkeypatch.setattr(bench.fake, "evaluate", evaluate)
    return victims


def test_cancels_in_flight_never_record_a_config_as_crashed() -> None:
    bench = FakeBench()

    for _ in range(2):
        cancel = threading.Event()

        def fate(config: Config, cancel: threading.Event = cancel) -> str:
            if config == default(bench):
                return "right"
            cancel.set()
            return "blocks"

        bench.fate = fate
        with pytest.raises(Cancelled):
            tuning(bench, trials=TRIALS, cancel=cancel).run()
    bench.fate = lambda _: "right"
    tuning(bench, trials=TRIALS).run()
    assert {(c.status, c.attempt) for c in candidates(bench)} == {(Status.MEASURED, 1)}


@pytest.mark.parametrize("error", [StoreError("the database was busy"), KeyboardInterrupt(), OSError("no such folder")])
def test_what_says_nothing_of_the_config_withdraws_its_attempt(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench()
    with monkeypatch.context() as patch:
        victims = measuring_raises(patch, bench, error)
        for _ in range(2):
            with pytest.raises(type(error)):
                tuning(bench, trials=TRIALS).run()
    assert bench.store.begin_attempt(tuning(bench).evaluator.key(victims[0])) == 1


def test_a_record_that_cannot_be_written_withdraws_its_attempt() -> None:
    class FailingStore(MemoryStore):
        failures = 0

        def add_candidate(self, candidate: Candidate) -> None:
            if self.failures and candidate.config != default(bench):
                self.failures -= 1
                raise StoreError("the database was busy")
            super().add_candidate(candidate)

    store = FailingStore()
    bench = FakeBench(store=store)
    for _ in range(2):
        store.failures = 1
        with pytest.raises(StoreError, match="busy"):
            tuning(bench, trials=TRIALS).run()
    tuning(bench, trials=TRIALS).run()
    assert {(c.status, c.attempt) for c in candidates(bench)} == {(Status.MEASURED, 1)}


def test_where_the_withdrawal_fails_too_the_first_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeafStore(MemoryStore):
        def withdraw_attempt(self, key: CandidateKey, number: int) -> None:
            raise StoreError(f"attempt {number} of {key.config_digest} cannot be withdrawn")

    bench = FakeBench(store=DeafStore())
    measuring_raises(monkeypatch, bench, StoreError("the first reason"))
    with pytest.raises(StoreError, match="the first reason"):
        tuning(bench, trials=TRIALS).run()


def test_attempts_of_other_runs_that_were_recorded_are_no_deaths() -> None:
    bench = FakeBench()
    tuning(bench, trials=TRIALS).run()
    evaluator, config = tuning(bench).evaluator, default(bench)
    for attempt in (2, 3, 4):
        (again,) = evaluator.candidates([(Proposal(config), bench.build(GEMM, config))], evaluator.measurers)
        assert (again.attempt, again.status) == (attempt, Status.MEASURED)
