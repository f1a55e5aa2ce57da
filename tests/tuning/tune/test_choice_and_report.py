"""What is chosen among the finalists, by which races, and the timings that are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench, hashed_us
from tests.present_timings import timing_of
from tests.tuning.tune.small_search import GEMM, REGIME, candidates, default, races, samples_of, tuning
from tirgemm import Budget, Config
from tirgemm.artifact import Trust, read
from tirgemm.events import Event, KernelSelected
from tirgemm.timings import SelectionReason
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Candidate, CandidateKey, KernelRecord, SampleSet, Status
from tirgemm.tuning.sweep import Outcome, Sweep
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

pytestmark = pytest.mark.usefixtures("all_scored")


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


def test_records_of_an_older_knob_set_take_no_place_among_the_finalists() -> None:
    bench = FakeBench()
    today = default(bench)
    for number in range(7):
        gone = Config(today.family, (*today.knobs[:-1], ("gone", number)))
        samples = SampleSet((5.0 + number,) * 5)
        bench.store.add_candidate(
            Candidate(GEMM, bench.device.key, REGIME, gone, Status.MEASURED, sample_sets=(samples,))
        )
    record = tuning(bench, trials=20).run()
    tried = {c.config for c in candidates(bench) if c.config.knobs[-1][0] != "gone"}
    (race,) = races(bench, "selection")
    assert set(race.configs) == {today, *sorted(tried - {today}, key=hashed_us)[:6]}
    assert record.config == min(tried, key=hashed_us)


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


def reports_the_default_as(bench: FakeBench, us: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default takes so long beside what was chosen, and as long as ever in any other race."""
    usual, digest = bench.fake.time, default(bench).digest

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **more: Any) -> SampleSet:
        samples = usual(package, options, against=against, **more)
        beside = {digest: (us,) * 6} if options.reason == "report" and digest in against else {}
        return replace(samples, baselines=samples.baselines | beside)

    monkeypatch.setattr(bench.fake, "time", time)


def by_a_sweep(tuning: Tuning) -> KernelRecord | None:
    outcomes: list[Outcome] = []
    Sweep([tuning], seconds=600.0, on_outcome=outcomes.append).run()
    return outcomes[0].record


@pytest.mark.parametrize("run", [Tuning.run, by_a_sweep], ids=["alone", "sweep"])
@pytest.mark.parametrize("effort", ["quick", "standard", "exhaustive"])
def test_a_choice_that_the_reporting_race_shows_to_be_slower_gives_way_to_the_default(
    monkeypatch: pytest.MonkeyPatch, effort: str, run: Callable[[Tuning], KernelRecord | None]
) -> None:
    bench, told = FakeBench(), list[Event]()
    reports_the_default_as(bench, 1.0, monkeypatch)
    control = Control(on_event=told.append)
    record = run(Tuning(GEMM, bench, REGIME, Budget.of(effort, trials=12), families=["x86"], control=control))
    assert record is not None
    assert (record.config, record.role) == (default(bench), "tuned")
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) == record
    assert record.certificate is not None
    assert record.certificate.kernel_sha256 == record.kernel_sha256
    chosen, replacing = (timed for timed in bench.fake.timed if timed.options.reason == "report")
    assert (len(chosen.configs), replacing.configs) == (2, [record.config])
    assert replacing.options.seed not in {timed.options.seed for timed in bench.fake.timed if timed is not replacing}
    assert timing_of(record.timings).baselines["default"].ratio == 1
    assert timing_of(record.timings).median_us == pytest.approx(hashed_us(record.config)), "not the race that chose it"
    words = f"the default, at least {hashed_us(chosen.configs[0]):.3f} times as fast as what was chosen"
    assert record.timings.selection == SelectionReason(f"{words}, with 95% confidence", 1.0)
    (selected,) = (event for event in told if isinstance(event, KernelSelected))
    assert (selected.kernel, selected.config, selected.timings) == (record.id, str(record.config), record.timings)


@pytest.mark.parametrize(("fate", "until", "status"), [("uncertified", "", "wrong"), ("dies", "report", "crashed")])
def test_a_default_that_failed_before_or_fails_then_does_not_replace_the_choice(
    monkeypatch: pytest.MonkeyPatch, fate: str, until: str, status: str
) -> None:
    bench = FakeBench()
    search = tuning(bench, families=["x86"])
    search.fallback()
    reports_the_default_as(bench, 1.0, monkeypatch)

    def fails(config: Config) -> bool:
        return config == default(bench) and until not in {timed.options.reason for timed in bench.fake.timed}

    bench.fate = lambda config: fate if fails(config) else "right"
    record = search.run()
    assert record.config == min((c.config for c in candidates(bench)), key=hashed_us)
    marked = bench.store.candidate(search.evaluator.key(default(bench)))
    assert marked is not None
    assert marked.status == status


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


@pytest.mark.parametrize(("trials", "words"), [(12, "the fastest of the finalists"), (2, "the only finalist")])
def test_where_no_default_was_measured_none_is_named_and_the_fastest_is_served(trials: int, words: str) -> None:
    bench = FakeBench()
    bench.fate = lambda config: "wrong" if config == default(bench) else "right"
    record = by_a_sweep(tuning(bench, trials=trials, families=["x86"]))
    assert record is not None
    measured = [c.config for c in candidates(bench) if c.status is Status.MEASURED]
    assert record.config == min(measured, key=hashed_us)
    assert record.timings.selection == SelectionReason(f"{words}; the default is out")
    assert (record.timings.default, timing_of(record.timings).ratio_to("default")) == (None, None)


def test_a_default_that_fails_in_the_selection_is_not_raced_again() -> None:
    bench = FakeBench()
    search = tuning(bench, families=["x86"])
    search.fallback()
    search.search()
    bench.fate = lambda config: "dies" if config == default(bench) else "right"
    record = search.run()
    reported = [timed for timed in bench.fake.timed if timed.options.reason in ("report", "other_regime")]
    assert [timed.configs for timed in reported] == [[record.config]] * len(reported)
    assert record.timings.default is None


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


@pytest.mark.parametrize(("arch", "beside"), [("", {"numpy_f32"}), ("sm_90a", {"numpy_f32", "torch.matmul"})])
def test_a_default_behind_which_nothing_is_searched_stands_beside_pytorch_on_a_gpu(arch: str, beside: set[str]) -> None:
    bench = FakeBench()
    bench.fake.offered = ("numpy_f32", "torch.matmul")
    evaluator = tuning(bench).evaluator
    bench.device = bench.device.with_(kind="cuda", arch=arch) if arch else bench.device
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
