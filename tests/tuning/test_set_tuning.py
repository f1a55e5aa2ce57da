"""Tuning of a range of m to a set of kernels. No time here is real, but for one set that is built and run."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.helpers.scripts import script
from tirgemm import Budget, Config, Gemm
from tirgemm.artifact import Kernel, Package, Trust, read
from tirgemm.detect import device as detect
from tirgemm.errors import Cancelled, VerificationFailed
from tirgemm.events import (
    BatchProposed,
    BuildsCounted,
    CandidateRecorded,
    Event,
    FinalistsRaced,
    KernelSelected,
    PhaseEntered,
)
from tirgemm.families import FAMILIES
from tirgemm.gemm import Range, Regime
from tirgemm.tuning.budget import covers
from tirgemm.tuning.build import builds_report
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.default_set import default_set
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.evaluate import Evaluator
from tirgemm.tuning.kernel_set.sizes import searched_sizes
from tirgemm.tuning.measure import MeasurementCrashed
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Candidate, KernelRecord, SampleSet, Status
from tirgemm.tuning.set_members import SetPart
from tirgemm.tuning.set_tuning import SetTuning, tuned_record, tuning_class
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuned_kernel import TuneRequest, tune
from tirgemm.tuning.tuning_task import Control
from tirgemm.tuning_db import shipped
from tirgemm.tuning_db.data_folder import open_store
from tirgemm.tuning_db.local_kernels import LocalKernels
from tirgemm.tuning_db.transfer import export_records

pytestmark = pytest.mark.usefixtures("all_scored")

GEMM = Gemm.parse("4..64x96x64:f32:nt")
REGIME: Regime = "sustained"
TILES = (4, 8, 14)
SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64)


def config_of(bench: FakeBench, tile_m: int) -> Config:
    """A config of the family x86 that every part of the range has, with tiles of so many rows."""
    default = FAMILIES["x86"].default(GEMM, bench.device, REGIME)
    knobs = dict(default.knobs) | {"tile_m": tile_m, "vectors": 2, "unroll": 1, "threads": 1}
    return Config("x86", tuple((name, knobs[name]) for name, _ in default.knobs))


class Bench(FakeBench):
    """Small tiles are the fastest where m is small, large ones where it is large. What was measured at each size is
    recorded already: the tiles of 4 at the smaller ones, of 8 and 14 at the larger."""

    def __init__(self, problem: Gemm = GEMM) -> None:
        super().__init__()
        self.problem = problem
        self.evaluated: list[tuple[Gemm, Config]] = []
        self.uncertified: set[tuple[str, int]] = set()
        evaluate, time, verify = self.fake.evaluate, self.fake.time, self.fake.verify

        def evaluation(package: bytes, regime: str, **options: Any) -> Any:
            actual, samples = evaluate(package, regime, **options)
            manifest = self.fake.manifest(package)
            self.evaluated.append((manifest.gemm, manifest.config))
            return actual, samples and SampleSet((self.us_at(package),) * 5)

        def timing(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
            samples = time(package, options, against=against, **rest)
            beside = {name: (self.us_at(data),) * 6 for name, data in against.items()}
            return SampleSet((self.us_at(package),) * 6, options.reason, dict(samples.baselines) | beside, {})

        def verification(package: bytes, **options: Any) -> Any:
            manifest = self.fake.manifest(package)
            actual = verify(package, **options)
            failed = (str(manifest.gemm.m), manifest.config["tile_m"]) in self.uncertified
            return replace(actual, passed=False) if failed else actual

        measurer: Any = self.fake
        measurer.evaluate, measurer.time, measurer.verify = evaluation, timing, verification
        for size in SIZES:
            for tile in {4, 8 if size >= 12 else 4, 14 if size >= 24 else 4}:
                gemm = problem.with_(m=Range(4, size))
                candidate = Candidate(gemm, self.device.key, REGIME, config_of(self, tile), Status.MEASURED)
                self.store.add_candidate(candidate.with_(sample_sets=(SampleSet((us_of(tile, size),) * 5),)))

    def us_at(self, package: bytes) -> float:
        manifest = self.fake.manifest(package)
        return us_of(int(manifest.config["tile_m"]), manifest.gemm.m_max)


def us_of(tile: int, m: int) -> float:
    """Equal for 4 and 8 at m = 14, for 8 and 14 at m = 56."""
    return 10.0 + m if tile <= 4 else 17 + m / 2 if tile <= 8 else 31 + m / 4


def tuned(bench: FakeBench, **control: Any) -> KernelRecord:
    """With as many trials as are recorded, so that nothing is searched."""
    gemm = bench.problem if isinstance(bench, Bench) else GEMM
    return SetTuning(gemm, bench, REGIME, Budget(1, 600.0), families=["x86"], control=Control(**control)).run()


def package_of(bench: FakeBench, record: KernelRecord) -> Package:
    return read(bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public))


def table(bench: FakeBench, record: KernelRecord) -> dict[str, int]:
    """The tile of the kernel that serves each range."""
    return {str(member.gemm.m): int(member.config["tile_m"]) for member in package_of(bench, record).manifest.members}


def test_the_range_is_cut_where_another_kernel_is_faster() -> None:
    bench = Bench()
    record = tuned(bench)
    # Between two sizes the border is half way: there the kernel below is as fast as the one above.
    assert table(bench, record) == {"4..14": 4, "15..56": 8, "57..64": 14}
    manifest = package_of(bench, record).manifest
    assert (manifest.gemm, manifest.regime, manifest.role, manifest.certificate_fault) == (GEMM, REGIME, "tuned", "")
    assert (record.role, record.kernel_sha256, record.gemm) == ("tuned", manifest.kernel_sha256, GEMM)
    assert record.certificate is not None
    assert record.certificate.kernel_sha256 == record.kernel_sha256
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) == record
    search, members = record.timings.search, record.timings.members
    assert search is not None
    assert search.sizes == SIZES == searched_sizes(Range(4, 64))
    assert members is not None
    assert [(one.m, one.median_us) for one in members] == [("4..14", 24.0), ("15..56", 45.0), ("57..64", 47.0)]
    assert [one.kernel_sha256 for one in members] == [one.kernel_sha256 for one in manifest.members]
    assert manifest.timings == record.timings


def test_the_border_is_at_the_size_where_the_kernel_above_is_faster_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = us_of
    monkeypatch.setattr(f"{__name__}.us_of", lambda tile, m: slower(tile, m) + 0.1 * (tile <= 4 and m == 14))
    bench = Bench()
    assert list(table(bench, tuned(bench))) == ["4..12", "13..56", "57..64"]


def test_a_kernel_that_fails_its_certificate_is_recorded_and_the_range_cut_without_it() -> None:
    bench = Bench()
    bench.uncertified = {("15..56", 8)}
    record = tuned(bench)
    assert "15..56" not in table(bench, record)
    assert package_of(bench, record).manifest.certificate_fault == ""
    part = GEMM.with_(m=Range(15, 56))
    wrong = [c for c in bench.store.candidates(part, bench.device.key, REGIME) if c.status is Status.WRONG]
    assert [candidate.config["tile_m"] for candidate in wrong] == [8]


def test_records_of_knobs_that_a_family_had_once_are_passed_over() -> None:
    bench = Bench()
    known = config_of(bench, 4)
    old = [Config("x86", known.knobs[:-1]), Config("x86", (*known.knobs[:-1], ("threads", -1)))]
    bench.fate = lambda config: "unbuildable" if config in old else "right"
    for size in SIZES:
        for config in old[: 2 if size == 4 else 1]:
            candidate = Candidate(GEMM.with_(m=Range(4, size)), bench.device.key, REGIME, config, Status.MEASURED)
            bench.store.add_candidate(candidate.with_(sample_sets=(SampleSet((1.0,) * 5),)))
    assert table(bench, tuned(bench)) == {"4..14": 4, "15..56": 8, "57..64": 14}


def test_a_size_at_which_nothing_runs_in_the_race_is_passed_over() -> None:
    bench = Bench()
    raced: list[int] = []

    def time(package: bytes, options: RaceOptions, **rest: Any) -> Any:
        size = read(package, Trust.of(bench.signer.public)).manifest.gemm.m_max
        if options.reason == "selection" and size == 12:
            raced.append(size)
            raise MeasurementCrashed("the measuring process died: signal 11 (SIGSEGV)")
        return usual(package, options, **rest)

    measurer: Any = bench.fake
    usual, measurer.time = measurer.time, time
    assert set(table(bench, tuned(bench)).values()) == {4, 8, 14}
    assert raced


def test_the_default_of_a_part_serves_where_it_turns_out_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    part = GEMM.with_(m=Range(15, 56))
    default = FAMILIES["x86"].default(part, bench.device, REGIME)
    usual, speed = bench.fake.time, dict[str, float]()

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        samples = usual(package, options, against=against, **rest)
        if options.reason != "report" or default.digest not in against:
            return samples
        return replace(samples, baselines=samples.baselines | {default.digest: (44.0 * speed["default"],) * 6})

    monkeypatch.setattr(bench.fake, "time", time)
    for factor, served in ((1.0, 8), (0.5, default["tile_m"])):
        speed["default"] = factor
        assert table(bench, tuned(bench))["15..56"] == served


def test_one_kernel_that_is_the_fastest_everywhere_is_stored_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.us_of", lambda tile, m: 10.0 + m * (tile > 4))
    bench = Bench()
    record = tuned(bench)
    manifest = package_of(bench, record).manifest
    assert (manifest.members, manifest.gemm, manifest.config["tile_m"]) == ((), GEMM, 4)
    assert record.timings.members is None
    assert (manifest.certificate_fault, manifest.role) == ("", "tuned")


def test_what_was_measured_is_not_measured_again() -> None:
    bench = Bench()
    first = tuned(bench)
    second = tuned(bench)
    assert table(bench, second) == table(bench, first)
    assert len(set(bench.evaluated)) == len(bench.evaluated)
    assert not {(GEMM.with_(m=Range(4, size)), config_of(bench, 4)) for size in SIZES} & set(bench.evaluated)


def test_a_set_answers_its_request_again_where_one_size_alone_has_spent_its_trials() -> None:
    bench, budget = Bench(), Budget.of("quick")
    smallest = GEMM.with_(m=Range(4, SIZES[0]))
    space = FAMILIES["x86"].space(smallest, bench.device)
    for number in range(Budget.of("standard").trials):
        candidate = Candidate(smallest, bench.device.key, REGIME, space.at(number), Status.MEASURED)
        bench.store.add_candidate(candidate.with_(sample_sets=(SampleSet((500.0,) * 5),)))
    record = tuned_record(SetTuning(GEMM, bench, REGIME, budget))
    search, evaluated = record.timings.search, len(bench.evaluated)
    assert search is not None
    assert (search.ended, search.effort, search.trials, record.trials) == ("trials", "quick", 18, 18)
    assert not covers(record, Budget.of("standard")), "of which one size alone has so many records"
    assert tuned_record(SetTuning(GEMM, bench, REGIME, budget)) == record
    assert len(bench.evaluated) == evaluated


def test_what_the_search_built_is_not_built_again_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, built = Bench(), Counter[tuple[Gemm, Config]]()
    build = bench.build

    def counted(gemm: Gemm, config: Config, **rest: Any) -> Future[Binary]:
        built[gemm, config] += 1
        return build(gemm, config, **rest)

    monkeypatch.setattr(bench, "build", counted)
    SetTuning(GEMM, bench, REGIME, Budget.of("quick")).run()
    measured = {(gemm, config) for gemm, config in bench.evaluated if gemm.m_min == 4 and gemm.m_max in SIZES}
    assert len(measured) > len(SIZES)
    assert {str(gemm): built[gemm, config] for gemm, config in measured if built[gemm, config] > 1} == {}


def test_only_the_last_kernel_of_a_searched_set_is_timed_in_both_regimes() -> None:
    bench = Bench()
    record = tuned(bench)
    told = [member.timings.of("isolated") for member in package_of(bench, record).manifest.members]
    assert [timing is not None for timing in told] == [False, False, True]
    assert record.timings.of("isolated") is not None


def test_a_search_that_is_stopped_ends_with_one_kernel_for_the_whole_range() -> None:
    bench, stop = Bench(), threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, PhaseEntered) and "sizes of m" in event.detail:
            stop.set()

    record = tuned(bench, on_event=on_event, stop=stop)
    assert record.interrupted
    assert package_of(bench, record).manifest.members == ()


def test_a_cancelled_set_leaves_its_records() -> None:
    bench, cancel = Bench(), threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, CandidateRecorded):
            cancel.set()

    with pytest.raises(Cancelled):
        tuned(bench, on_event=on_event, cancel=cancel)
    known = bench.store.kernel(GEMM, bench.device.key, REGIME)
    assert known is not None
    assert known.role == "fallback"


def test_the_caller_hears_of_all_sizes_as_of_one_search() -> None:
    events: list[Event] = []
    bench = Bench()
    record = tuned(bench, on_event=events.append)
    told = [event for event in events if isinstance(event, CandidateRecorded)]
    assert len(told) > 3
    for number, event in enumerate(told, 1):
        assert number <= event.trials <= event.of
    chosen = [event.detail for event in events if isinstance(event, PhaseEntered) and "sizes of m" in event.detail]
    assert chosen == [f"the search of {len(SIZES)} sizes of m", f"at {len(SIZES)} sizes of m"], "none lie between"
    parts = {event.m for event in told}
    assert len(parts) > 2
    assert all(4 <= Gemm.parse(f"{part}x96x64:f32:nt").m_max <= 64 for part in parts)
    (selected,) = (event for event in events if isinstance(event, KernelSelected))
    assert selected.kernel == record.id
    assert [event.kind for event in events[-1:]] == ["done"]


def test_a_fixed_m_is_tuned_to_one_kernel() -> None:
    assert tuning_class(GEMM.with_(m=64)) is Tuning
    assert tuning_class(GEMM) is SetTuning


def test_a_set_that_was_tuned_runs_every_m_and_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm.parse("1..3x48x16:f32:nt")
    budget = Budget.of("quick", trials=1)
    with open_store(tmp_path / "there") as store:
        kernel = tune(TuneRequest.of(gemm, "cpu", REGIME, budget), store=store, lock_dir=tmp_path)
        export_records(store.db, tmp_path / "records.jsonl.gz")
    assert kernel.record.role == "tuned"
    assert kernel.manifest.certificate_fault == ""
    runs_every_m(kernel, (1, 2, 3))

    module: Any = script("scripts/ship_records.py")
    (tmp_path / "shipped").mkdir()
    module.ship([tmp_path / "records.jsonl.gz"], tmp_path / "shipped")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setenv("TIRGEMM_LOCK_DIR", str(tmp_path))
    arrived: list[Kernel] = []
    here = LocalKernels(tmp_path / "here")
    preparation = here.prepare([gemm], detect("cpu"), "shipped", arrived.append)
    assert preparation.wait(120)
    assert preparation.failures == {}
    (served,) = arrived
    assert (served.manifest.role, served.gemm, served.timings.ended) == ("tuned", gemm, "shipped")
    runs_every_m(served, (1, 2, 3))


def runs_every_m(kernel: Kernel, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for m in sizes:
        a, b = rng.integers(-3, 4, (m, 16)).astype(np.float32), rng.integers(-3, 4, (48, 16)).astype(np.float32)
        np.testing.assert_array_equal(kernel(a, b), a @ b.T)
        assert kernel.member(m).gemm.m_min <= m <= kernel.member(m).gemm.m_max


def test_where_nothing_runs_at_any_size_the_search_says_so_and_the_fallback_stays() -> None:
    halves = [SetPart(GEMM.with_(m=m), config_of(FakeBench(), 4)) for m in (Range(4, 31), Range(32, 64))]
    bench = FakeBench(lambda _: "crashes")
    fallback = default_set(SetTuning(GEMM, bench, REGIME), halves)
    with pytest.raises(VerificationFailed, match=r"none of the fastest kernels of 4\.\.64x96x64"):
        tuned(bench)
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) == fallback


@pytest.mark.parametrize("effort", [Effort.NONE, Effort.STANDARD])
@pytest.mark.parametrize("ends", [(64,), (31, 64)])
def test_the_kernels_of_a_default_set_are_timed_as_the_last_ones_where_nothing_is_searched(
    effort: Effort, ends: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, certified = list[bool](), Evaluator.certified_default

    def default(evaluator: Evaluator, config: Config, *, last: bool = False) -> KernelRecord:
        told.append(last)
        return certified(evaluator, config, last=last)

    monkeypatch.setattr(Evaluator, "certified_default", default)
    bench = FakeBench()
    starts = [4, *(end + 1 for end in ends[:-1])]
    parts = [SetPart(GEMM.with_(m=Range(*m)), config_of(bench, 4)) for m in zip(starts, ends, strict=True)]
    default_set(SetTuning(GEMM, bench, REGIME, Budget.of(effort, None, None)), parts)
    assert told == [effort is Effort.NONE] * len(parts)


def test_pruned_configs_builds_and_races_of_all_sizes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds_report, "BUILDS_SECONDS", 3600.0)
    events: list[Event] = []
    control = Control(on_event=events.append)
    SetTuning(Gemm.parse("4..8x96x64:f32:nt"), FakeBench(), REGIME, Budget(10, 600.0), control=control).run()
    batches = [event for event in events if isinstance(event, BatchProposed)]
    totals = [sum(event.pruned.values()) for event in batches]
    assert totals == sorted(totals), "those of all sizes, so that they only grow"
    assert len(set(totals)) > 2
    assert [event.trials for event in batches] == sorted(event.trials for event in batches)
    builds = [event for event in events if isinstance(event, BuildsCounted)]
    assert any(event.built for event in builds)
    assert (builds[-1].queued, builds[-1].building, builds[-1].built) == (0, 0, 0)
    assert len(builds) <= 1 + len(batches), "seldom, of all sizes together"
    races = [event for event in events if isinstance(event, FinalistsRaced)]
    raced = [event.m for event in races]
    assert len(set(raced)) == len(raced) > 1
    assert all(len(event.entries) > 1 for event in races)
