"""The measuring of a suite: which rows come out, what is kept on resuming, and what becomes of shapes that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.artifact_samples import CONFIG, SIGNER, cpu, packed, rows_binary
from tirgemm import Config, Gemm
from tirgemm.artifact import Trust, read
from tirgemm.bench.results import ResultsFile, environment, spread
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suite_run import Bench, BenchOptions, Work
from tirgemm.bench.suites import benchmarks_folder, suite_named
from tirgemm.config import Knob, Space
from tirgemm.errors import BuildFailed, DoesNotFit, InvalidRequest, Unsupported
from tirgemm.families import FAMILIES, Rule
from tirgemm.service import cli
from tirgemm.service.commands.bench import _line
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

SHAPES = ("33x17x19:f16:nt", "1x7x5:f32:nn", "129x3x11:f16:tn")
TUNED = Config("sample", (("rows", 2),))


@dataclass
class FakeMeasurer:
    """Every baseline takes as long as its name has letters; ours takes what ``times`` says of its config, else 2 us."""

    calls: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    swaps: list[bool] = field(default_factory=list)
    verified: list[bytes] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    dies_with: str = ""
    deaths: int = 1000
    wrong: str = ""
    error: float = 0.5
    raises: Exception | None = None
    offered: tuple[str, ...] = ("numpy_f32",)
    alone: float = 1.0
    """By which all of ours is slower where no baseline runs beside."""

    def baselines(self) -> tuple[str, ...]:
        return self.offered

    def stream(self) -> SampleSet:
        return SampleSet((0.5, 0.25, 0.25), "selection", {}, {"bytes": 1_000_000, "at": "2026-11-21"})

    def verify(self, package: bytes, *, level: str, seed: int) -> Any:
        assert (level, seed) == ("candidate", 7)
        self.verified.append(package)
        error = 9.0 if config_of(package).digest == self.wrong else self.error
        return SimpleNamespace(passed=error <= 1, error=error)

    def time(self, package: bytes, options: RaceOptions, *, against: Any, baselines: Any, **_: Any) -> SampleSet:
        mine = config_of(package).digest
        if options.min_samples > 1:  # not one of those that find out who is to blame
            assert options.min_samples == (50 if options.regime == "isolated" else 24)
            self.calls.append((options.regime, tuple(against), tuple(baselines)))
            self.swaps.append(options.swap)
        if self.raises:
            raise self.raises
        if self.dies_with in (mine, *against, *baselines) and self.deaths:
            self.deaths -= 1
            raise MeasurementCrashed("signal 9")
        drift = 1.0 if baselines else self.alone  # what chooses runs without baselines
        us = drift * self.times.get(mine, 2.0)
        others: dict[str, tuple[float, ...]] = {name: (drift * self.times.get(name, 2.0),) * 3 for name in against}
        others |= {name: (float(len(name)),) * 3 for name in baselines}
        return SampleSet((us, us - 0.5, us + 0.5), "selection", others, {"swapped": options.swap, "throttled": []})


def config_of(package: bytes) -> Config:
    return read(package, Trust.of(SIGNER.public)).manifest.config


def packed_of(gemm: Gemm, config: Config, same: bool = False) -> bytes:
    """An artifact whose machine code is the config's own, or the default's."""
    code = rows_binary(gemm) + (CONFIG if same else config).digest.encode()
    return packed(gemm, config=config, binary=code)


@dataclass
class FakeWorkbench:
    measurer: FakeMeasurer = field(default_factory=FakeMeasurer)
    store: MemoryStore = field(default_factory=MemoryStore)
    device: Any = field(default_factory=cpu)
    signer: Any = SIGNER
    built: list[str] = field(default_factory=list)
    pool: Any = field(default_factory=lambda: SimpleNamespace(processes=1))
    fails: Exception | None = None
    same: tuple[Config, ...] = ()
    """Configs that make the very machine code of the default."""

    def build(self, gemm: Gemm, config: Config) -> Future[str]:
        self.built.append(f"{gemm} {config}")
        future: Future[str] = Future()
        if self.fails:
            future.set_exception(self.fails)
        else:
            future.set_result("binary")
        return future

    def package(self, gemm: Gemm, config: Config, _binary: str) -> bytes:
        return packed_of(gemm, config, config in self.same)


class FakeTuning:
    """Finds ``best`` for every problem, unless ``refuse`` says otherwise."""

    best: Config = TUNED

    refuse: Callable[[Gemm], Exception | None] = staticmethod(lambda _gemm: None)
    runs: list[str] = []
    budget = Budget(trials=2)

    def __init__(self, gemm: Gemm, workbench: FakeWorkbench, *_: Any, **__: Any) -> None:
        self.gemm, self.workbench = gemm, workbench
        error = type(self).refuse(gemm)
        if error:
            raise error

    def default(self) -> tuple[None, Config]:
        return None, CONFIG

    def loadable(self) -> None:
        """Nothing."""

    def run(self) -> Any:
        self.runs.append(str(self.gemm))
        config = type(self).best
        sha256 = self.workbench.store.put_blob(packed_of(self.gemm, config, config in self.workbench.same))
        return SimpleNamespace(config=config, artifact_sha256=sha256)


@pytest.fixture(autouse=True)
def tuning(monkeypatch: pytest.MonkeyPatch) -> type[FakeTuning]:
    monkeypatch.setattr("tirgemm.bench.suite_run.tuning_class", lambda _: FakeTuning)
    monkeypatch.setattr("tirgemm.tuning.set_tuning.tuning_class", lambda _: FakeTuning)
    monkeypatch.setattr(FakeTuning, "runs", [])
    return FakeTuning


@pytest.fixture
def suite() -> Suite:
    return Suite("tiny", "made up for this test", tuple(map(Gemm.parse, SHAPES)))


def runner_on(bench: FakeWorkbench, **options: Any) -> Bench:
    """The bench on a workbench of which it needs no more than the fake has; one race, where nothing else is said."""
    return Bench(cast(Workbench, bench), BenchOptions(seed=7, **{"races": 1} | options))


def measured(
    path: Path, suite: Suite, bench: FakeWorkbench, variants: str = "default tuned", **options: Any
) -> ResultsFile:
    file = ResultsFile(path, suite.name, "sustained", environment(cpu(), None), resume=path.exists())
    runner = runner_on(bench, **options)
    assert runner.run([Work(suite, "sustained", file)], variants.split(), lambda _row, _kept: None) == 0
    return file


def test_every_shape_has_a_row_in_every_variant_beside_its_baselines(tmp_path: Path, suite: Suite) -> None:
    bench = FakeWorkbench(FakeMeasurer(times={CONFIG.digest: 3.0}))
    file = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert [(row["gemm"], row["variant"]) for row in file.rows] == [
        (g, v) for g in SHAPES for v in ("default", "tuned")
    ]
    default, tuned = file.rows[:2]
    assert (default["median_us"], default["error"], default["workspace_bytes"]) == (3.0, 0.5, 0)
    assert {name: entry["ratio"] for name, entry in default["baselines"].items()} == {"numpy_f32": 3.0}
    assert {name: entry["ratio"] for name, entry in tuned["baselines"].items()} == {"default": 1.5, "numpy_f32": 4.5}
    assert tuned["baselines"]["numpy_f32"]["samples_us"] == default["baselines"]["numpy_f32"]["samples_us"]
    assert (tuned["config_hash"], default["config_hash"]) == (TUNED.digest, CONFIG.digest)
    assert file.document["summary"]["tuned"]["default"] == {"geomean": pytest.approx(1.5), "min": 1.5, "count": 3}
    assert bench.measurer.calls == [("sustained", (TUNED.digest,), ("numpy_f32",))] * 3, "one contest a shape"


def test_each_shape_is_told_as_it_begins(tmp_path: Path, suite: Suite) -> None:
    told: list[tuple[str, int, int]] = []

    def on_shape(gemm: Gemm, number: int, of: int) -> None:
        told.append((str(gemm), number, of))

    measured(tmp_path / "tiny.sustained.json", suite, FakeWorkbench(), on_shape=on_shape)
    assert told == [(gemm, number, len(SHAPES)) for number, gemm in enumerate(SHAPES, 1)]


def test_a_shape_is_raced_as_often_as_asked_and_the_spread_shows(tmp_path: Path, suite: Suite) -> None:
    class Drifting(FakeMeasurer):
        """Ours is slower from race to race, the baseline is not."""

        def time(self, *args: Any, **options: Any) -> SampleSet:
            self.times[CONFIG.digest] = 20.0 + 2 * len(self.calls)
            return super().time(*args, **options)

    bench = FakeWorkbench(Drifting())
    one = Suite("tiny", "one", suite.gemms[:1])
    (row,) = measured(tmp_path / "tiny.sustained.json", one, bench, "default", races=3).rows
    assert [race["median_us"] for race in row["races"]] == [20.0, 22.0, 24.0]
    assert [race["baselines"]["numpy_f32"]["ratio"] for race in row["races"]] == [9 / 20, 9 / 22, 9 / 24]
    assert (len(row["samples_us"]), row["median_us"]) == (9, 22.0)
    assert spread(row) == pytest.approx(0.2)
    assert (
        row["source_sha256"] == read(bench.measurer.verified[0], Trust.of(SIGNER.public)).manifest.sources["kernel.ll"]
    )
    with pytest.raises(InvalidRequest, match="races are 0"):
        runner_on(bench, races=0)


def test_a_tuned_invariant_shape_is_raced_beside_the_unrestricted_kernel_of_the_same_budget(
    tmp_path: Path, tuning: type[FakeTuning]
) -> None:
    plain = Gemm.parse("33x17x4096:f32:nt")
    bench = FakeWorkbench(FakeMeasurer(times={"unrestricted": 1.5, CONFIG.digest: 3.0}))
    suite = Suite("tiny", "made up", (plain.with_(invariant=True), plain))
    rows = measured(tmp_path / "tiny.sustained.json", suite, bench).rows
    assert tuning.runs == [f"{plain}:invariant", str(plain), str(plain)]
    assert [set(row["baselines"]) for row in rows] == [
        {"numpy_f32", "unrestricted"},
        {"numpy_f32", "unrestricted", "default"},
        {"numpy_f32"},
        {"numpy_f32", "default"},
    ]
    assert [row["baselines"]["unrestricted"]["ratio"] for row in rows[:2]] == [0.5, 0.75]


def test_without_an_unrestricted_kernel_a_row_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: type[FakeTuning]
) -> None:
    plain, run = Gemm.parse("33x17x4096:f32:nt"), tuning.run

    def failing(self: FakeTuning) -> Any:
        if not self.gemm.invariant:
            raise BuildFailed("no kernel of this problem builds")
        return run(self)

    monkeypatch.setattr(tuning, "run", failing)
    suite = Suite("tiny", "made up", (plain.with_(invariant=True),))
    (row,) = measured(tmp_path / "tiny.sustained.json", suite, FakeWorkbench(), "tuned").rows
    assert (row["status"], set(row["baselines"])) == ("measured", {"numpy_f32", "default"})
    assert row["conditions"]["unrestricted_failed"] == "build_failed: no kernel of this problem builds"


def test_an_invariant_shape_that_is_not_tuned_is_raced_beside_the_best_recorded_unrestricted_kernel(
    tmp_path: Path,
) -> None:
    plain, device = Gemm.parse("33x17x4096:f32:nt"), cpu()
    x86 = FAMILIES["x86"]
    best = x86.default(plain, device, "sustained").with_(block_k=512)
    bench = FakeWorkbench(FakeMeasurer(times={"unrestricted": 1.5, CONFIG.digest: 3.0}))
    bench.store.add_candidate(
        Candidate(plain, device.key, "sustained", best, Status.MEASURED, sample_sets=(SampleSet((1.0,)),))
    )
    suite = Suite("tiny", "made up", (plain.with_(invariant=True), plain))
    invariant, other = measured(tmp_path / "tiny.sustained.json", suite, bench, "default").rows
    assert (set(invariant["baselines"]), set(other["baselines"])) == ({"numpy_f32", "unrestricted"}, {"numpy_f32"})
    assert invariant["baselines"]["unrestricted"]["ratio"] == 0.5
    assert f"{plain} {best}" in bench.built, "the fastest recorded config, which the invariant problem refuses"


@pytest.mark.parametrize("by_config", [True, False])
def test_a_tuned_kernel_that_is_the_default_has_its_samples_and_a_ratio_of_one(
    tmp_path: Path, suite: Suite, tuning: type[FakeTuning], monkeypatch: pytest.MonkeyPatch, by_config: bool
) -> None:
    """The default's config, or another one that compiles to the same."""
    monkeypatch.setattr(tuning, "best", CONFIG if by_config else TUNED)
    bench = FakeWorkbench(FakeMeasurer(times={CONFIG.digest: 3.0, TUNED.digest: 2.9}), same=(TUNED,))
    file = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert bench.measurer.calls == [("sustained", (), ("numpy_f32",))] * 3, "it is not timed against itself"
    for default, tuned in zip(file.rows[::2], file.rows[1::2], strict=True):
        assert tuned["samples_us"] == tuned["baselines"]["default"]["samples_us"] == default["samples_us"]
        assert tuned["baselines"]["default"]["ratio"] == 1
        assert tuned["config"] == default["config"]
    assert file.document["summary"]["tuned"]["default"] == {"geomean": 1, "min": 1, "count": 3}
    assert "(the default is the best)" in _line(tuned, False)
    assert "the default is the best" not in _line(default, False)


@pytest.mark.usefixtures("sample_family")
def test_a_config_that_fails_beside_one_that_is_the_default_costs_no_row(tmp_path: Path, suite: Suite) -> None:
    wrong = Config("sample", (("rows", 4),))
    bench = recorded(FakeWorkbench(FakeMeasurer(wrong=wrong.digest), same=(TUNED,)), wrong, TUNED)
    one = Suite("tiny", "the first", suite.gemms[:1])
    file = measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    assert [row["status"] for row in file.rows] == ["measured", "measured"]
    assert file.rows[1]["baselines"]["default"]["ratio"] == 1


def test_resuming_measures_only_what_is_missing(tmp_path: Path, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.sustained.json"
    bench = FakeWorkbench(FakeMeasurer(times={CONFIG.digest: 3.0}))
    measured(path, Suite("tiny", "the first two", suite.gemms[:2]), bench)
    before = len(bench.measurer.calls)
    file = measured(path, suite, bench)
    assert len(bench.measurer.calls) - before == 1, "the third shape"
    assert FakeTuning.runs == list(SHAPES)
    assert [row["gemm"] for row in file.rows][::2] == list(SHAPES)
    monkeypatch.setattr(FakeTuning, "default", lambda _self: (None, TUNED))
    measured(path, suite, bench, "default")
    assert len(bench.measurer.calls) - before == 4, "another default is measured again"


def test_what_was_measured_before_a_kill_is_in_the_file(tmp_path: Path, suite: Suite) -> None:
    path, bench = tmp_path / "tiny.sustained.json", FakeWorkbench()
    seen: list[Any] = []

    def killed(row: Any, _kept: bool) -> None:
        seen.append(row)
        if len(seen) == 4:
            raise KeyboardInterrupt

    file = ResultsFile(path, suite.name, "sustained", environment(cpu(), None), resume=False)
    runner = runner_on(bench)
    with pytest.raises(KeyboardInterrupt):
        runner.run([Work(suite, "sustained", file)], ["default", "tuned"], killed)
    assert json.loads(path.read_text())["rows"] == seen


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BuildFailed("ptxas says no [-x]"), "build_failed"),
        (MeasurementCrashed("signal 11"), "crashed"),
        (MeasurementTimedOut("60 s"), "timed_out"),
    ],
)
def test_a_shape_that_fails_is_a_row_with_its_reason(
    tmp_path: Path, suite: Suite, error: Exception, status: str
) -> None:
    bench = FakeWorkbench(fails=error if status == "build_failed" else None)
    bench.measurer.raises = None if status == "build_failed" else error
    file = measured(tmp_path / "tiny.sustained.json", suite, bench, "default")
    assert {(row["status"], row["message"], row["config_hash"]) for row in file.rows} == {
        (status, str(error), CONFIG.digest)
    }
    assert file.document["summary"] == {}


def test_a_wrong_kernel_is_never_timed(tmp_path: Path, suite: Suite) -> None:
    bench = FakeWorkbench()
    bench.measurer.error = 1.5
    file = measured(tmp_path / "tiny.sustained.json", suite, bench, "default")
    assert {row["status"] for row in file.rows} == {"wrong"}
    assert not bench.measurer.calls


def test_a_shape_that_cannot_be_is_skipped_with_its_reason(
    tmp_path: Path, suite: Suite, tuning: type[FakeTuning], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {SHAPES[0]: Unsupported("no family writes it"), SHAPES[1]: DoesNotFit("it needs 1 TB")}
    monkeypatch.setattr(tuning, "refuse", staticmethod(lambda gemm: errors.get(str(gemm))))
    file = measured(tmp_path / "tiny.sustained.json", suite, FakeWorkbench(), "tuned")
    assert [row["status"] for row in file.rows] == ["skipped", "skipped", "measured"]
    assert file.rows[1]["message"] == "it needs 1 TB"


def recorded(bench: FakeWorkbench, *configs: Config) -> FakeWorkbench:
    """The workbench, its store with records of ``configs`` for the first shape, fastest first."""
    for number, config in enumerate(configs):
        samples = (SampleSet((1.0 + number,), baselines={"numpy_f32": (9.0,)}),)
        bench.store.add_candidate(
            Candidate(
                Gemm.parse(SHAPES[0]), bench.device.key, "sustained", config, Status.MEASURED, sample_sets=samples
            )
        )
    return bench


ROWS = [Config("sample", (("rows", rows),)) for rows in (1, 2, 4, 8)]


@pytest.fixture
def sample_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family of CONFIG and TUNED, whose only rule is against 8 rows."""
    space = Space("sample", (Knob("rows", (1, 2, 4, 8)),))
    rule = Rule("rows", lambda _gemm, config, _device: "8 are too many" if config["rows"] == 8 else None)
    family = SimpleNamespace(name="sample", space=lambda *_: space, rules=(rule,))
    monkeypatch.setattr(FakeTuning, "families", (family,), raising=False)


@pytest.mark.usefixtures("sample_family")
def test_the_tuned_row_is_the_fastest_now_of_the_recorded_best(tmp_path: Path, suite: Suite) -> None:
    one = Suite("tiny", "the first", suite.gemms[:1])
    times = {CONFIG.digest: 4.0, TUNED.digest: 3.0, ROWS[2].digest: 2.5}
    # By the records 2 rows are faster than 4; beside each other it is the other way round.
    bench = recorded(FakeWorkbench(FakeMeasurer(times=times, alone=2.0)), ROWS[3], TUNED, ROWS[2])
    file = measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    tuned = file.rows[1]
    assert bench.measurer.calls == [
        ("sustained", (TUNED.digest, ROWS[2].digest), ()),
        ("sustained", (ROWS[2].digest,), ("numpy_f32",)),
    ], "one race chooses, another reports"
    assert (tuned["config_hash"], tuned["median_us"]) == (ROWS[2].digest, 2.5)
    assert tuned["conditions"]["selection_us"].keys() == {CONFIG.digest, TUNED.digest, ROWS[2].digest}
    assert tuned["conditions"]["selection_us"][TUNED.digest] == [6.0] * 3, "every contender's samples are kept"
    assert set(tuned["samples_us"]) == {2.5}, "and none of those that chose is reported"
    assert tuned["baselines"]["default"]["ratio"] == 4.0 / 2.5
    assert tuned["conditions"]["entrants"] == [CONFIG.digest, TUNED.digest, ROWS[2].digest]
    assert FakeTuning.runs == [], "nothing is tuned"
    one_only = recorded(FakeWorkbench(FakeMeasurer(times=times)), ROWS[3], TUNED, ROWS[2])
    again = measured(tmp_path / "again.sustained.json", one, one_only, recorded=True, finalists=1)
    assert again.rows[1]["config_hash"] == TUNED.digest, "the second is not run"


@pytest.mark.usefixtures("sample_family")
def test_the_default_is_the_tuned_row_where_nothing_is_faster_or_known(tmp_path: Path, suite: Suite) -> None:
    bench = recorded(FakeWorkbench(FakeMeasurer(times={TUNED.digest: 2.5})), TUNED)
    file = measured(tmp_path / "tiny.sustained.json", suite, bench, recorded=True)
    assert {row["config_hash"] for row in file.rows if row["variant"] == "tuned"} == {CONFIG.digest}
    assert file.rows[1]["baselines"]["default"]["ratio"] == 1.0
    before = len(bench.measurer.calls)
    measured(tmp_path / "tiny.sustained.json", suite, bench, recorded=True)
    assert len(bench.measurer.calls) == before, "all is kept"


@pytest.mark.usefixtures("sample_family")
@pytest.mark.parametrize(("trouble", "status"), [("wrong", "wrong"), ("dies", "crashed")])
def test_a_best_config_that_fails_does_not_cost_the_default_its_row(
    tmp_path: Path, suite: Suite, trouble: str, status: str
) -> None:
    measurer = FakeMeasurer(wrong=TUNED.digest) if trouble == "wrong" else FakeMeasurer(dies_with=TUNED.digest)
    one = Suite("tiny", "the first", suite.gemms[:1])
    bench = recorded(FakeWorkbench(measurer), TUNED)
    file = measured(tmp_path / "tiny.sustained.json", one, bench, recorded=True)
    assert file.rows[0]["status"] == "measured"
    assert (file.rows[1]["status"], file.rows[1]["config_hash"]) == (status, TUNED.digest)
    assert file.rows[0]["conditions"]["entrants"] == [CONFIG.digest]


def test_a_baseline_that_kills_the_run_is_left_out(tmp_path: Path, suite: Suite) -> None:
    bench = FakeWorkbench(FakeMeasurer(dies_with="triton", offered=("numpy_f32", "triton")))
    file = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert {row["status"] for row in file.rows} == {"measured"}
    assert {tuple(row["baselines"]) for row in file.rows} == {("numpy_f32",), ("default", "numpy_f32")}
    assert all(row["conditions"]["left_out"] == {"triton": "signal 9"} for row in file.rows)
    bench.measurer.deaths = 0
    again = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert {tuple(row["baselines"]) for row in again.rows} == {
        ("numpy_f32", "triton"),
        ("default", "numpy_f32", "triton"),
    }


def test_a_run_that_dies_once_is_tried_again_with_everything(tmp_path: Path, suite: Suite) -> None:
    bench = FakeWorkbench(FakeMeasurer(dies_with="triton", deaths=1, offered=("numpy_f32", "triton")))
    file = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert {tuple(row["baselines"]) for row in file.rows} == {
        ("numpy_f32", "triton"),
        ("default", "numpy_f32", "triton"),
    }
    assert not any("left_out" in row["conditions"] for row in file.rows)


@pytest.mark.parametrize(("us", "swapped"), [(8.9, True), (2.01, True), (5.0, False)])
def test_a_small_gap_is_believed_only_with_the_buffers_swapped(
    tmp_path: Path, suite: Suite, us: float, swapped: bool
) -> None:
    """numpy_f32 takes 9 us, the default 2."""
    other = {8.9: (CONFIG.digest, 8.8), 2.01: (TUNED.digest, 2.01), 5.0: (TUNED.digest, 5.0)}[us]
    bench = FakeWorkbench(FakeMeasurer(times={other[0]: other[1], TUNED.digest: us}))
    file = measured(tmp_path / "tiny.sustained.json", Suite("tiny", "one", suite.gemms[:1]), bench)
    assert bench.measurer.swaps == ([False, True] if swapped else [False])
    assert {row["conditions"]["swapped"] for row in file.rows} == {swapped}
    assert len(file.rows[0]["samples_us"]) == (6 if swapped else 3)


def test_a_run_that_takes_long_is_not_swapped(tmp_path: Path, suite: Suite) -> None:
    bench = FakeWorkbench(FakeMeasurer(times={CONFIG.digest: 30_000.0, TUNED.digest: 30_100.0}))
    file = measured(tmp_path / "tiny.sustained.json", Suite("tiny", "one", suite.gemms[:1]), bench, "default")
    measured(tmp_path / "tiny.sustained.json", Suite("tiny", "one", suite.gemms[:1]), bench)
    assert bench.measurer.swaps == [False, False]
    assert file.rows[0]["conditions"]["swapped"] is False, "and the row says so"
    slower = FakeWorkbench(FakeMeasurer(times={CONFIG.digest: 2_000.0, TUNED.digest: 2_010.0}))
    measured(tmp_path / "two.sustained.json", Suite("tiny", "one", suite.gemms[:1]), slower)
    assert slower.measurer.swaps == [False, True]


def test_several_suites_and_regimes_are_one_run_with_one_build_and_one_verification(tmp_path: Path) -> None:
    both = [Suite(name, "made up", tuple(map(Gemm.parse, SHAPES[at:]))) for at, name in enumerate(("all", "most"))]
    bench, place = FakeWorkbench(), environment(cpu(), None)
    works = [
        Work(
            suite,
            regime,
            ResultsFile(tmp_path / f"{suite.name}.{regime}.json", suite.name, regime, place, resume=False),
        )
        for regime in ("sustained", "isolated")
        for suite in both
    ]
    runner_on(bench).run(works, ["default"], lambda *_: None)
    assert [(work.file.path.name, len(work.file.rows)) for work in works] == [
        ("all.sustained.json", 3),
        ("most.sustained.json", 2),
        ("all.isolated.json", 3),
        ("most.isolated.json", 2),
    ]
    assert len(bench.built) == len(bench.measurer.verified) == 3
    for work in works:
        streams = json.loads(work.file.path.read_text())["streams"]
        assert [stream["read_gbps"] for stream in streams] == [4000.0]
        assert {row["conditions"]["read_gbps"] for row in work.file.rows} == {4000.0}


def test_builds_are_under_way_before_the_first_shape_is_measured(tmp_path: Path, suite: Suite) -> None:
    seen: list[int] = []

    class Watched(FakeMeasurer):
        def time(self, *args: Any, **options: Any) -> SampleSet:
            seen.append(len(bench.built))
            return super().time(*args, **options)

    bench = FakeWorkbench(Watched())
    measured(tmp_path / "tiny.sustained.json", suite, bench, "default")
    assert seen[0] == 3


def test_a_time_limit_leaves_the_rest_for_another_run(tmp_path: Path, suite: Suite) -> None:
    path, bench = tmp_path / "tiny.sustained.json", FakeWorkbench()
    file = ResultsFile(path, suite.name, "sustained", environment(cpu(), None), resume=False)
    run = runner_on(bench).run
    assert run([Work(suite, "sustained", file)], ["default"], lambda *_: None, limit_s=-1.0) == 3
    assert file.rows == []
    assert run([Work(suite, "sustained", file)], ["default"], lambda *_: None, limit_s=60.0) == 0


def test_unknown_variants_and_baselines_are_refused(tmp_path: Path, suite: Suite) -> None:
    words = "variant 'fast' is unknown; variants are default, zero_shot, quick, standard, standard_again, tuned"
    with pytest.raises(InvalidRequest, match=words):
        measured(tmp_path / "x.json", suite, FakeWorkbench(), "fast")
    with pytest.raises(InvalidRequest, match=r"baseline 'torch\.matmul' cannot be measured on cpu here"):
        measured(tmp_path / "x.json", suite, FakeWorkbench(), baselines=("torch.matmul",))
    bench = FakeWorkbench()
    assert measured(tmp_path / "x.json", suite, bench, "default", baselines=()).document["summary"] == {}


def test_a_suite_is_found_by_name_from_a_checkout_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suite_named("x86").name == "x86"
    (tmp_path / "mine.json").write_text('{"name": "mine", "source": "here", "gemms": ["5x6x7:f32:nn"]}')
    assert suite_named(str(tmp_path / "mine.json")).gemms == (Gemm(5, 6, 7, dtype="f32", layout="nn"),)
    with pytest.raises(InvalidRequest, match="'absent' is unknown; give a JSON file, or one of breadth, deepgemm, "):
        suite_named("absent")
    (tmp_path / "benchmarks" / "suites").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert benchmarks_folder() == tmp_path / "benchmarks"


def test_the_command_says_what_is_wrong_with_what_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"name": "bad", "source": "x", "gemms": ["0x1x2"]}')
    for arguments, says in (
        (["bad.json"], "gemm field m is 0"),
        (["absent.json"], "is not a suite"),
        (["x86", "--trials", "0"], "budget trials is 0"),
        (["x86", "--device", "abacus"], "device 'abacus' is unknown"),
        (["x86", "--device", "cpu", "--variants", "fast"], "variant 'fast' is unknown; variants are default, "),
        (["x86", "--device", "cpu", "--baselines", "fast"], "baseline 'fast' cannot be measured on cpu here"),
        (["x86", "--device", "cpu", "--races", "2", "--family", "fast"], "'fast'"),
    ):
        assert cli.main(["bench", *arguments, "--data", str(tmp_path / "data")]) == 2
        error = capsys.readouterr().err.replace("\n", " ")
        assert says in error
        assert error.startswith("error: "), "no bar of what was never begun"
