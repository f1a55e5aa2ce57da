"""Runs of suites that go on, fail or end early: what is kept, and what becomes of shapes that fail."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bench.suite_run.fake_bench import SHAPES, TUNED, FakeMeasurer, FakeTuning, FakeWorkbench, measured, runner_on
from tests.helpers.artifact_samples import CONFIG, cpu
from tirgemm.bench.results import ResultsFile, environment
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suite_run import Work
from tirgemm.errors import BuildFailed, DoesNotFit, Unsupported
from tirgemm.service import cli
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut


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


def test_an_interrupt_of_which_a_library_makes_an_error_ends_the_command_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_arguments: Any, **_options: Any) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("parallel_for_dynamic error with InternalError") from error
        return 0

    monkeypatch.setattr("tirgemm.bench.suite_run.Bench.run", run)
    options = ["--device", "cpu", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "x.json")]
    assert cli.main(["bench", "x86", *options]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "error: interrupted"
    assert cli.main(["bench", "x86", *options, "--resume", "--json"]) == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["code"] == "interrupted"
    assert "--resume goes on from there" in said.err


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


def test_a_time_limit_leaves_the_rest_for_another_run(tmp_path: Path, suite: Suite) -> None:
    path, bench = tmp_path / "tiny.sustained.json", FakeWorkbench()
    file = ResultsFile(path, suite.name, "sustained", environment(cpu(), None), resume=False)
    run = runner_on(bench).run
    assert run([Work(suite, "sustained", file)], ["default"], lambda *_: None, limit_s=-1.0) == 3
    assert file.rows == []
    assert run([Work(suite, "sustained", file)], ["default"], lambda *_: None, limit_s=60.0) == 0
