"""The tuner's stages: what is recorded, what is chosen, and what a budget, a kill or a cancellation leaves."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tests.helpers.fake_workbench import FakeBench, Timed, hashed_us
from tests.present_timings import timing_of
from tests.tuning.build.heard_builds import HeardBuilds
from tirgemm import Budget, Config, Gemm
from tirgemm.artifact import Trust, read
from tirgemm.errors import (
    BuildFailed,
    Cancelled,
    DeviceUnavailable,
    InvalidRequest,
    StoreUnavailable,
    Unsupported,
    VerificationFailed,
)
from tirgemm.events import BatchProposed, CandidateRecorded, Event, PhaseEntered
from tirgemm.families import FAMILIES
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Regime
from tirgemm.hardware import named_device
from tirgemm.tuning import search_loop
from tirgemm.tuning.build.prepared import PreparedBuilds
from tirgemm.tuning.records import CandidateKey, SampleSet, Status
from tirgemm.tuning.search import search
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM = Gemm.parse("61x67x71:f16:nt")
REGIME: Regime = "sustained"


def candidates(bench: FakeBench, gemm: Gemm = GEMM) -> list[Any]:
    return [c for c in bench.store.candidates(gemm, bench.device.key, REGIME) if c.status is not Status.PRUNED]


def tuning(
    bench: FakeBench,
    trials: int = 12,
    *,
    seconds: float = 600.0,
    seed: int = 0,
    families: list[str] | None = None,
    **control: Any,
) -> Tuning:
    budget = Budget(trials, seconds)
    return Tuning(GEMM, bench, REGIME, budget, seed=seed, families=families, control=Control(**control))


def races(bench: FakeBench, reason: str) -> list[Timed]:
    """The runs that were asked for, for a reason, of several kernels."""
    return [timed for timed in bench.fake.timed if timed.options.reason == reason and len(timed.configs) > 1]


def samples_of(bench: FakeBench, config: Config, reason: str) -> list[SampleSet]:
    """What is stored of a config, of those taken for a reason."""
    stored = bench.store.candidate(CandidateKey(GEMM, bench.device.key, REGIME, config.digest))
    assert stored is not None
    return [samples for samples in stored.sample_sets if samples.reason == reason]


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
    assert set(timing_of(timings).baselines) == {"default", "numpy_f32"}
    assert set(timing_of(timings, "isolated").baselines) == {"default", "numpy_f32"}
    assert timing_of(timings).baselines["default"].median_us == pytest.approx(hashed_us(default(bench)))
    assert timings.default == str(default(bench))


def test_configs_that_compile_to_the_default_are_the_default() -> None:
    bench = FakeBench()
    bench.us = lambda config: 5.0 if config == default(bench) else 4.0
    bench.code = lambda _: default(bench)
    record = tuning(bench).run()
    assert record.config == default(bench)
    assert timing_of(record.timings).baselines["default"].ratio == 1
    assert not [timed for timed in bench.fake.timed if len(timed.configs) > 1], "nothing is timed against itself"


def test_what_is_chosen_by_one_race_is_reported_from_another() -> None:
    bench = FakeBench()
    faster = {"selection": 1.0, "report": 2.0}
    bench.drift = lambda options: faster.get(options.reason, 1.0)
    record = tuning(bench).run()
    (chosen_by,), (reported,) = races(bench, "selection"), races(bench, "report")
    us = hashed_us(record.config)
    assert timing_of(record.timings).median_us == pytest.approx(2 * us), "the second race's figures"
    assert len(chosen_by.configs) > 2
    assert chosen_by.baselines == ()
    assert reported.configs == [record.config, default(bench)]
    assert reported.baselines == ("numpy_f32",)
    assert reported.options.seed != chosen_by.options.seed
    for config in chosen_by.configs:
        (samples,) = samples_of(bench, config, "selection")
        assert samples.median_us == pytest.approx(hashed_us(config)), "every contender's samples are kept"
    for config, beside in ((record.config, {"default", "numpy_f32"}), (default(bench), {"numpy_f32"})):
        (samples,) = samples_of(bench, config, "report")
        assert samples.baselines.keys() == beside
        assert samples_of(bench, config, "other_regime")


def test_a_small_reported_gap_is_raced_again_with_the_buffers_swapped() -> None:
    bench = FakeBench()
    bench.us = lambda config: 100.0 if config == default(bench) else 99.0 + hashed_us(config) / 1e4
    record = tuning(bench).run()
    assert record.config != default(bench)
    assert [timed.options.swap for timed in races(bench, "report")] == [False, True]
    assert timing_of(record.timings).samples == 12
    assert timing_of(record.timings).conditions["swapped"] is True


def test_a_finalist_that_dies_in_the_race_is_recorded_so_and_the_others_go_on() -> None:
    bench = FakeBench()
    search = tuning(bench)
    search.fallback()
    search.search()
    best = min((c.config for c in candidates(bench)), key=hashed_us)
    bench.fate = lambda config: "dies" if config == best else "right"
    record = tuning(bench).run()
    assert record.config == sorted((c.config for c in candidates(bench)), key=hashed_us)[1]
    marked = bench.store.candidate(CandidateKey(GEMM, bench.device.key, REGIME, best.digest))
    assert marked is not None
    assert (marked.status, "signal 11" in marked.message) == (Status.CRASHED, True)


def test_a_lone_default_is_not_raced_to_be_chosen() -> None:
    bench = FakeBench()
    record = tuning(bench, trials=1).run()
    assert [timed.options.reason for timed in bench.fake.timed] == ["search", "report", "other_regime"]
    assert record.timings.selection is not None
    assert record.timings.selection.to_json() == {"reason": "the default is the only finalist", "ratio_low": 1.0}


def test_pytorch_stands_beside_the_choice_but_the_fallback_does_not_wait_for_it() -> None:
    bench = FakeBench()
    bench.fake.offered = ("numpy_f32", "torch.matmul")
    fallback = tuning(bench).fallback()
    assert set(timing_of(fallback.timings).baselines) == {"numpy_f32"}
    timings = tuning(bench).run().timings
    for regime in ("sustained", "isolated"):
        assert set(timing_of(timings, regime).baselines) == {"default", "numpy_f32", "torch.matmul"}


def test_the_building_and_the_measuring_process_begin_before_the_default_is_built() -> None:
    bench = FakeBench()
    begun: list[list[str]] = []

    def built(_config: Config) -> str:
        begun.append(list(bench.begun))
        return "right"

    bench.fate = built
    tuning(bench).fallback()
    assert begun[0] == ["builds", "measuring"]


@pytest.mark.parametrize(("kind", "beside"), [("cpu", {"numpy_f32"}), ("cuda", {"numpy_f32", "torch.matmul"})])
def test_a_default_behind_which_nothing_is_searched_stands_beside_pytorch_on_a_gpu(kind: str, beside: set[str]) -> None:
    bench = FakeBench()
    bench.fake.offered = ("numpy_f32", "torch.matmul")
    evaluator = tuning(bench).evaluator
    bench.device = bench.device.with_(kind=kind)
    record = evaluator.certified_default(default(FakeBench()), last=True)
    assert set(timing_of(record.timings).baselines) == beside


def test_the_default_stays_where_nothing_is_faster() -> None:
    bench = FakeBench()
    bench.us = lambda config: 5.0 if config == default(bench) else 9.0
    record = tuning(bench).run()
    assert record.config == default(bench)
    assert timing_of(record.timings).baselines["default"].ratio == 1


def test_a_small_gap_is_measured_again_with_the_buffers_swapped() -> None:
    bench = FakeBench()
    bench.us = lambda config: 100.0 if config == default(bench) else 98.0 + hashed_us(config) / 1e4
    tuning(bench).run()
    assert [timed.options.swap for timed in races(bench, "selection")] == [False, True]


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


def test_what_is_served_is_a_finalist_of_the_next_search_and_stays_unless_it_is_beaten() -> None:
    bench = FakeBench()
    first = tuning(bench, trials=9).run()
    others = [c.config for c in candidates(bench) if c.config != first.config]
    # By the search's own times it is now the slowest: only a place of its own makes it a finalist.
    bench.store.add_samples(tuning(bench).evaluator.key(first.config), SampleSet((1e6,) * 5, "noise"))
    again = tuning(bench, trials=9).run()
    assert again.config == first.config
    assert again.trials == 9
    assert again.id != first.id, "the same kernel is stored again, with what was tried since"
    bench.us = lambda config: 1.0 if config == others[-1] else hashed_us(config)
    bench.store.add_samples(tuning(bench).evaluator.key(others[-1]), SampleSet((1.0,) * 5, "noise"))
    assert tuning(bench, trials=9).run().config == others[-1]


def test_a_lead_over_what_is_served_that_is_small_is_measured_again_with_the_buffers_swapped() -> None:
    bench = FakeBench()
    first = tuning(bench, trials=9).run()
    other = next(c.config for c in candidates(bench) if c.config not in (first.config, default(bench)))
    bench.us = lambda config: {first.config: 5.0, other: 4.9}.get(config, 50.0)
    bench.store.add_samples(tuning(bench).evaluator.key(other), SampleSet((1.0,) * 5, "noise"))
    bench.fake.timed.clear()
    assert tuning(bench, trials=9).run().config == other
    assert [timed.options.swap for timed in races(bench, "selection")] == [False, True]


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
    monkeypatch.setattr(search, "ALL_SCORED", 64)  # so that much is expected of the next batch
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
        Budget(33, 600.0),
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


def test_pruned_examples_are_kept_with_rule_and_reason() -> None:
    bench = FakeBench()
    tuning(bench).run()
    pruned = [c for c in bench.store.candidates(GEMM, bench.device.key, REGIME) if c.status is Status.PRUNED]
    assert pruned
    assert all(c.rule and c.message for c in pruned)


def test_the_first_batch_after_a_rule_prunes_has_its_sentence_and_no_other_has() -> None:
    bench = FakeBench()
    events: list[Event] = []
    tuning(bench, on_event=events.append).run()
    batches = [event for event in events if isinstance(event, BatchProposed)]
    told = [rule for batch in batches for rule in batch.sentences]
    assert sorted(told) == sorted(set(batches[-1].pruned)), "each rule once, while the search runs"
    assert all(rule in batch.pruned and sentence for batch in batches for rule, sentence in batch.sentences.items())


def test_a_named_device_is_built_for_but_not_tuned_on() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80")
    with pytest.raises(DeviceUnavailable, match="only named"):
        tuning(bench).run()
    record = tuning(bench).cross_compile()
    assert record.role == "unverified"
    assert record.certificate is None
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) is None


def test_another_familys_default_is_built_where_the_first_does_not_build() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80")
    (first, config), (second, other), *_ = ranked_defaults(tuning(bench).families, GEMM, bench.device, REGIME)
    bench.fate = lambda config: "unbuildable" if config.family == first.name else "right"
    record = tuning(bench).cross_compile()
    assert (record.config, record.role) == (other, "unverified")
    assert bench.built == [config, other]
    assert record.timings.predicted_us == second.predict_us(GEMM, other, bench.device, REGIME)
    bench.fate = lambda _config: "unbuildable"
    with pytest.raises(BuildFailed, match=f"no default of {GEMM} on sm_80 works"):
        tuning(bench).cross_compile()


@pytest.mark.parametrize("first_builds", [True, False])
@pytest.mark.parametrize("error", [DeviceUnavailable("GPU-1 cannot be opened"), StoreUnavailable("no answer")])
def test_what_says_nothing_of_a_default_is_not_asked_of_another_familys(
    monkeypatch: pytest.MonkeyPatch, error: Exception, first_builds: bool
) -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80").with_(uuid="GPU-1")
    first, second, *_ = [config for _, config in ranked_defaults(tuning(bench).families, GEMM, bench.device, REGIME)]
    bench.fate = lambda config: "right" if first_builds or config != first else "unbuildable"

    def verify(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(bench.fake, "verify", verify)
    with pytest.raises(type(error)) as raised:
        tuning(bench).fallback()
    assert raised.value is error
    assert bench.built == ([first] if first_builds else [first, second])


@pytest.mark.parametrize(
    ("options", "error"), [({"families": ["simt"]}, InvalidRequest), ({"families": ["what"]}, InvalidRequest)]
)
def test_families_that_cannot_are_refused_by_name(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"simt|what"):
        tuning(FakeBench(), **options)


def test_an_unknown_regime_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'warm'"):
        Tuning(GEMM, FakeBench(), cast(Any, "warm"))


def test_a_problem_that_no_family_writes_says_every_reason() -> None:
    with pytest.raises(Unsupported, match=r"x86: .*simt: "):
        Tuning(Gemm.parse("64x64x64:f16:nt:acc=f16"), FakeBench(), REGIME)
