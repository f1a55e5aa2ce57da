"""What is recorded of each candidate, and searches that go on from the records."""

from __future__ import annotations

import pytest

from tests.helpers.fake_workbench import FakeBench, hashed_us
from tests.tuning.tune.small_search import GEMM, REGIME, candidates, default, tuning
from tirgemm import Budget, Config
from tirgemm.errors import (
    VerificationFailed,
)
from tirgemm.tuning.records import Candidate, CandidateKey, Status
from tirgemm.tuning.tune import Tuning

pytestmark = pytest.mark.usefixtures("all_scored")


@pytest.mark.parametrize(
    ("fate", "status"),
    [
        ("wrong", Status.WRONG),
        ("hangs", Status.TIMED_OUT),
        ("crashes", Status.CRASHED),
        ("unbuildable", Status.BUILD_FAILED),
    ],
)
def test_every_candidate_is_stored_with_what_became_of_it(fate: str, status: Status) -> None:
    bench = FakeBench()
    bench.fate = lambda config: fate if int(config.digest, 16) % 2 and config != default(bench) else "right"
    record = tuning(bench, trials=16).run()
    actual = {c.status for c in candidates(bench)}
    assert actual == {Status.MEASURED, status}
    assert all(c.message for c in candidates(bench) if c.status is status)
    assert bench.fate(record.config) == "right"


def test_a_choice_that_fails_its_certificate_is_marked_wrong_and_the_next_is_taken() -> None:
    bench = FakeBench()
    best: list[Config] = []

    def fate(config: Config) -> str:
        return "uncertified" if config in best else "right"

    bench.fate = fate
    search = tuning(bench)
    search.fallback()
    search.search()
    best.append(min((c.config for c in candidates(bench)), key=hashed_us))
    record = tuning(bench).run()
    assert record.config != best[0]
    marked = bench.store.candidate(CandidateKey(GEMM, bench.device.key, REGIME, best[0].digest))
    assert marked is not None
    assert marked.status is Status.WRONG


def test_a_choice_whose_rows_differ_from_a_stored_kernel_s_is_marked_wrong_and_the_next_is_taken() -> None:
    """The stored one is of another m."""
    bench, gemm = FakeBench(), GEMM.with_(invariant=True)
    stored = Tuning(gemm.with_(m=500), bench, REGIME, Budget.of("none")).run()
    search = Tuning(gemm, bench, REGIME, Budget(4, 600.0))
    search.fallback()
    search.search()
    best = min((c.config for c in candidates(bench, gemm)), key=hashed_us)
    bench.fate = lambda config: "alone" if config == best else "right"
    record = Tuning(gemm, bench, REGIME, Budget(4, 600.0)).run()
    assert record.config != best
    marked = bench.store.candidate(CandidateKey(gemm, bench.device.key, REGIME, best.digest))
    assert marked is not None
    assert marked.status is Status.WRONG
    assert str(stored.gemm) in marked.message


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_default_that_was_recorded_as_failed_is_measured_once_it_works(is_stored: bool) -> None:
    bench = FakeBench()
    if is_stored:
        tuning(bench).fallback()
    failed = Candidate(GEMM, bench.device.key, REGIME, default(bench), Status.BUILD_FAILED, message="no linker")
    bench.store.add_candidate(failed)
    record = tuning(bench, trials=1).run()
    assert (record.role, record.config) == ("tuned", default(bench))
    (candidate,) = candidates(bench)
    assert (candidate.status, candidate.message) == (Status.MEASURED, "")


@pytest.mark.parametrize("stage", ["fallback", "selection"])
def test_a_killed_measuring_process_does_not_cost_the_job(stage: str) -> None:
    bench = FakeBench()
    if stage == "selection":
        tuning(bench).fallback()
        tuning(bench).search()
    bench.fake.kills = 2
    assert tuning(bench).run().role == "tuned"
    assert bench.fake.kills == 0


def test_nothing_is_served_where_every_default_is_wrong() -> None:
    bench = FakeBench(fate=lambda _: "wrong")
    with pytest.raises(VerificationFailed, match=r"no default of .* works"):
        tuning(bench).run()
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) is None


def test_a_second_run_goes_on_from_the_records_and_measures_none_again() -> None:
    bench = FakeBench()
    tuning(bench, trials=9).run()
    first = {c.config for c in candidates(bench)}
    bench.fake.evaluated.clear()
    tuning(bench, trials=15).run()
    assert len(candidates(bench)) == 15
    assert not first & set(bench.fake.evaluated)
    bench.fake.evaluated.clear()
    tuning(bench, trials=15).run()
    assert bench.fake.evaluated == []


def test_a_config_that_took_the_process_down_twice_is_not_tried_a_third_time() -> None:
    bench = FakeBench()
    key_of = tuning(bench).evaluator.key
    search = tuning(bench)
    search.fallback()
    search.search()
    victim = next(c.config for c in candidates(bench) if c.config != default(bench))
    fresh = FakeBench()
    for _ in range(2):
        fresh.store.begin_attempt(key_of(victim))
    tuning(fresh).run()
    assert victim not in fresh.fake.evaluated
    actual = fresh.store.candidate(key_of(victim))
    assert actual is not None
    assert (actual.status, actual.attempt) == (Status.CRASHED, 3)


def test_the_same_seed_and_measurements_propose_the_same() -> None:
    runs = []
    for seed in (3, 3, 4):
        bench = FakeBench()
        tuning(bench, seed=seed).run()
        runs.append(bench.fake.evaluated)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_pruned_examples_are_kept_with_rule_and_reason() -> None:
    bench = FakeBench()
    tuning(bench).run()
    pruned = [c for c in bench.store.candidates(GEMM, bench.device.key, REGIME) if c.status is Status.PRUNED]
    assert pruned
    assert all(c.rule and c.message for c in pruned)
