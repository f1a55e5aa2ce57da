"""The tuner's stages: what is recorded, what is chosen, and what a budget, a kill or a cancellation leaves."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.unit.fake_workbench import FakeBench, hashed_us
from tirgemm import Budget, Config, Gemm
from tirgemm.artifact import Trust, read
from tirgemm.errors import Cancelled, DeviceUnavailable, InvalidRequest, Unsupported, VerificationFailed
from tirgemm.families import FAMILIES
from tirgemm.hardware import named_device
from tirgemm.tuning.records import CandidateKey, Status
from tirgemm.tuning.tune import Tuning

GEMM = Gemm.parse("61x67x71:f16:nt")
REGIME = "sustained"


def candidates(bench: FakeBench, gemm: Gemm = GEMM) -> list[Any]:
    return [c for c in bench.store.candidates(gemm, bench.device.key, REGIME) if c.status is not Status.PRUNED]


def tuning(bench: FakeBench, trials: int = 12, **options: Any) -> Tuning:
    return Tuning(GEMM, bench, REGIME, Budget(trials, options.pop("seconds", 60.0)), **options)


def default(bench: FakeBench) -> Config:
    return FAMILIES["x86"].default(GEMM, bench.device, REGIME)


def test_the_fastest_is_served_with_its_evidence_and_one_hash() -> None:
    bench = FakeBench()
    record = tuning(bench).run()
    tried = candidates(bench)
    assert len(tried) == 12
    assert record.config == min((c.config for c in tried), key=hashed_us)
    manifest = read(bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public)).manifest
    chosen = next(c for c in tried if c.config == record.config)
    assert manifest.kernel_sha256 == record.kernel_sha256 == chosen.kernel_sha256
    assert record.certificate is not None
    assert record.certificate.kernel_sha256 == record.kernel_sha256
    assert manifest.certificate == record.certificate.to_json()
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) == record


def test_both_regimes_the_default_and_the_baseline_stand_in_the_timings() -> None:
    bench = FakeBench()
    timings = tuning(bench).run().timings
    assert set(timings["sustained"]["baselines"]) == {"default", "numpy_f32"}
    assert set(timings["isolated"]["baselines"]) == {"default", "numpy_f32"}
    assert timings["sustained"]["baselines"]["default"]["median_us"] == pytest.approx(hashed_us(default(bench)))
    assert timings["default"]["config"] == str(default(bench))


def test_the_default_stays_where_nothing_is_faster() -> None:
    bench = FakeBench()
    bench.us = lambda config: 5.0 if config == default(bench) else 9.0
    record = tuning(bench).run()
    assert record.config == default(bench)
    assert record.timings["sustained"]["baselines"]["default"]["ratio"] == 1


def test_a_small_gap_is_measured_again_with_the_buffers_swapped() -> None:
    bench = FakeBench()
    bench.us = lambda config: 100.0 if config == default(bench) else 98.0 + hashed_us(config) / 1e4
    tuning(bench).run()
    assert [t.get("swap") for t in bench.fake.timed if t["regime"] == REGIME and t.get("against")] == [False, True]


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
    found = {c.status for c in candidates(bench)}
    assert found == {Status.MEASURED, status}
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
    found = fresh.store.candidate(key_of(victim))
    assert found is not None
    assert (found.status, found.attempt) == (Status.CRASHED, 3)


def test_the_same_seed_and_measurements_propose_the_same() -> None:
    runs = []
    for seed in (3, 3, 4):
        bench = FakeBench()
        tuning(bench, seed=seed).run()
        runs.append(bench.fake.evaluated)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_cancelling_ends_it_at_once_and_keeps_the_records() -> None:
    bench, cancel = FakeBench(), threading.Event()

    def fate(_: Config) -> str:
        if len(bench.fake.evaluated) <= 4:
            return "right"
        threading.Timer(0.2, cancel.set).start()
        return "blocks"

    bench.fate = fate
    events: list[str] = []
    started = time.monotonic()
    with pytest.raises(Cancelled):
        tuning(bench, cancel=cancel, on_event=lambda kind, _: events.append(kind)).run()
    assert time.monotonic() - started < 10
    assert events[-1] == "cancelled"
    assert len(candidates(bench)) == 5


def test_the_budget_of_seconds_ends_the_search_and_still_serves() -> None:
    bench = FakeBench()

    def slow(config: Config) -> float:
        time.sleep(0.05)
        return hashed_us(config)

    bench.us = slow
    record = tuning(bench, trials=10_000, seconds=1.0).run()
    assert record.role == "tuned"
    assert 1 < len(candidates(bench)) < 200


def test_events_tell_the_story_in_order() -> None:
    bench = FakeBench()
    events: list[tuple[str, dict[str, Any]]] = []
    tuning(bench, on_event=lambda kind, data: events.append((kind, data))).run()
    kinds = [kind for kind, _ in events]
    assert kinds[:3] == ["started", "fallback", "batch"]
    assert kinds[-2:] == ["selected", "done"]
    assert kinds.count("candidate") == 11
    assert all("at" in data for _, data in events)


def test_pruned_examples_are_kept_with_rule_and_reason() -> None:
    bench = FakeBench()
    tuning(bench).run()
    pruned = [c for c in bench.store.candidates(GEMM, bench.device.key, REGIME) if c.status is Status.PRUNED]
    assert pruned
    assert all(c.rule and c.message for c in pruned)


def test_a_named_device_is_built_for_but_not_tuned_on() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80")
    with pytest.raises(DeviceUnavailable, match="only named"):
        tuning(bench).run()
    record = tuning(bench).cross_compile()
    assert record.role == "unverified"
    assert record.certificate is None
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) is None


@pytest.mark.parametrize(
    ("options", "error"), [({"families": ["simt"]}, InvalidRequest), ({"families": ["what"]}, InvalidRequest)]
)
def test_families_that_cannot_are_refused_by_name(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"simt|what"):
        tuning(FakeBench(), **options)


def test_an_unknown_regime_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'warm'"):
        Tuning(GEMM, FakeBench(), "warm")


def test_a_problem_that_no_family_writes_says_every_reason() -> None:
    with pytest.raises(Unsupported, match=r"x86: .*simt: "):
        Tuning(Gemm.parse("64x64x64:f16:nt:acc=f16"), FakeBench(), REGIME)
