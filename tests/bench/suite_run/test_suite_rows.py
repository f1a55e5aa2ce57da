"""The rows of a suite: one for each shape and variant, beside what it is raced with, and what the command says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.bench.suite_run.fake_bench import SHAPES, TUNED, FakeMeasurer, FakeTuning, FakeWorkbench, measured, runner_on
from tests.helpers.artifact_samples import CONFIG, SIGNER, cpu
from tirgemm import Gemm
from tirgemm.artifact import Trust, read
from tirgemm.bench.results import ResultsFile, environment, spread
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suite_run import Work
from tirgemm.bench.suites import benchmarks_folder, suite_named
from tirgemm.errors import BuildFailed, InvalidRequest
from tirgemm.families import FAMILIES
from tirgemm.service import cli
from tirgemm.tuning.records import Candidate, SampleSet, Status


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
    for copy in ("a.json", "b.json"):
        (tmp_path / copy).write_text('{"name": "mine", "source": "x", "gemms": ["5x6x7:f32:nn"]}')
    for arguments, says in (
        (["a.json", "b.json", "--device", "cpu"], "suites of one name would share a results file"),
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


def test_the_command_measures_nothing_that_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("tirgemm.bench.suite_run.Bench.run")
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.json")
    for output, says in (("fifo.json", "no regular file"), ("/proc/x/y.json", "/proc/x: ")):
        assert cli.main(["bench", "x86", "--device", "cpu", "--output", output, "--data", "data"]) == 2
        assert says in capsys.readouterr().err


def test_a_shape_that_a_suite_names_twice_is_one(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text(json.dumps({"name": "twice", "source": "", "gemms": [SHAPES[1], *SHAPES, SHAPES[1]]}))
    assert [str(gemm) for gemm in Suite.read(path).gemms] == [SHAPES[1], SHAPES[0], *SHAPES[2:]]


def test_the_command_measures_a_variant_that_is_named_twice_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tirgemm.bench.suite_run.Bench.run", lambda _self, _works, names, *_, **__: asked.extend(names))
    options = ["--device", "cpu", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "x.json")]
    assert cli.main(["bench", "x86", "--variants", "default,tuned,default", *options]) == 0
    assert asked == ["default", "tuned"]
