"""Measuring a suite: which rows come out, what is kept on resuming, and what becomes of shapes that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service import cli
from service.bench import Bench
from service.results import ResultsFile, environment
from service.suites import Suite, benchmarks_folder, find_suite
from tests.unit.artifact_samples import CONFIG, SIGNER, cpu, packed
from tirgemm import Config, Gemm
from tirgemm.errors import BuildFailed, DoesNotFit, InvalidRequest, Unsupported
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.records import SampleSet

SHAPES = ("33x17x19:f16:nt", "1x7x5:f32:nn", "129x3x11:f16:tn")
TUNED = Config("sample", (("rows", 2),))


@dataclass
class FakeMeasurer:
    """Every opponent takes as long as its name has letters; ours takes 2 us."""

    calls: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    error: float = 0.5
    raises: Exception | None = None

    def baselines(self) -> tuple[str, ...]:
        return ("numpy_f32",)

    def verify(self, _package: bytes, *, level: str, seed: int) -> Any:
        assert (level, seed) == ("candidate", 7)
        return SimpleNamespace(passed=self.error <= 1, error=self.error)

    def time(self, _package: bytes, regime: str, *, against: Any, baselines: Any, **_: Any) -> SampleSet:
        self.calls.append((regime, tuple(against), tuple(baselines)))
        if self.raises:
            raise self.raises
        return SampleSet(
            (2.0, 1.5, 2.5), "selection", {name: (float(len(name)),) * 3 for name in (*against, *baselines)}
        )


@dataclass
class FakeWorkbench:
    measurer: FakeMeasurer = field(default_factory=FakeMeasurer)
    store: MemoryStore = field(default_factory=MemoryStore)
    device: Any = field(default_factory=cpu)
    signer: Any = SIGNER
    built: list[str] = field(default_factory=list)
    fails: Exception | None = None

    def build(self, gemm: Gemm, config: Config) -> Future[str]:
        self.built.append(f"{gemm} {config}")
        future: Future[str] = Future()
        if self.fails:
            future.set_exception(self.fails)
        else:
            future.set_result("binary")
        return future

    def package(self, gemm: Gemm, config: Config, _binary: str) -> bytes:
        return packed(gemm, config=config)


class FakeTuning:
    """Finds TUNED for every problem, unless ``refuse`` says otherwise."""

    refuse: Callable[[Gemm], Exception | None] = staticmethod(lambda _gemm: None)
    runs: list[str] = []

    def __init__(self, gemm: Gemm, workbench: FakeWorkbench, *_: Any, **__: Any) -> None:
        self.gemm, self.workbench = gemm, workbench
        error = type(self).refuse(gemm)
        if error:
            raise error

    def default(self) -> tuple[None, Config]:
        return None, CONFIG

    def run(self) -> Any:
        self.runs.append(str(self.gemm))
        sha256 = self.workbench.store.put_blob(packed(self.gemm, config=TUNED))
        return SimpleNamespace(config=TUNED, artifact_sha256=sha256)


@pytest.fixture(autouse=True)
def tuning(monkeypatch: pytest.MonkeyPatch) -> type[FakeTuning]:
    monkeypatch.setattr("service.bench.Tuning", FakeTuning)
    monkeypatch.setattr(FakeTuning, "runs", [])
    return FakeTuning


@pytest.fixture
def suite() -> Suite:
    return Suite("tiny", "made up for this test", tuple(map(Gemm.parse, SHAPES)))


def measured(
    path: Path, suite: Suite, bench: FakeWorkbench, variants: str = "default tuned", **options: Any
) -> ResultsFile:
    file = ResultsFile(path, suite.name, "sustained", environment(cpu(), None), resume=path.exists())
    runner = Bench(bench, "sustained", seed=7, **options)  # type: ignore[arg-type]
    runner.run(suite, variants.split(), file, lambda _row, _kept: None)
    return file


def test_every_shape_has_a_row_in_every_variant_beside_its_baselines(tmp_path: Path, suite: Suite) -> None:
    bench = FakeWorkbench()
    file = measured(tmp_path / "tiny.sustained.json", suite, bench)
    assert [(row["gemm"], row["variant"]) for row in file.rows] == [
        (g, v) for g in SHAPES for v in ("default", "tuned")
    ]
    default, tuned = file.rows[:2]
    assert (default["median_us"], default["error"], default["workspace_bytes"]) == (2.0, 0.5, 0)
    assert {name: entry["ratio"] for name, entry in default["baselines"].items()} == {"numpy_f32": 4.5}
    assert {name: entry["ratio"] for name, entry in tuned["baselines"].items()} == {"default": 3.5, "numpy_f32": 4.5}
    assert (tuned["config_hash"], default["config_hash"]) == (TUNED.digest, CONFIG.digest)
    assert file.document["summary"]["tuned"]["default"] == {"geomean": pytest.approx(3.5), "min": 3.5, "count": 3}
    assert bench.measurer.calls[1] == ("sustained", ("default",), ("numpy_f32",))


def test_resuming_measures_only_what_is_missing(tmp_path: Path, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    path, bench = tmp_path / "tiny.sustained.json", FakeWorkbench()
    measured(path, Suite("tiny", "the first two", suite.gemms[:2]), bench)
    before = len(bench.measurer.calls)
    file = measured(path, suite, bench)
    assert len(bench.measurer.calls) - before == 2, "the default and the tuned kernel of the third shape"
    assert FakeTuning.runs == list(SHAPES)
    assert [row["gemm"] for row in file.rows][::2] == list(SHAPES)
    monkeypatch.setattr(FakeTuning, "default", lambda _self: (None, TUNED))
    measured(path, suite, bench, "default")
    assert len(bench.measurer.calls) - before == 5, "another default is measured again"


def test_what_was_measured_before_a_kill_is_in_the_file(tmp_path: Path, suite: Suite) -> None:
    path, bench = tmp_path / "tiny.sustained.json", FakeWorkbench()
    seen: list[Any] = []

    def killed(row: Any, _kept: bool) -> None:
        seen.append(row)
        if len(seen) == 3:
            raise KeyboardInterrupt

    file = ResultsFile(path, suite.name, "sustained", environment(cpu(), None), resume=False)
    with pytest.raises(KeyboardInterrupt):
        Bench(bench, "sustained", seed=7).run(suite, ["default", "tuned"], file, killed)  # type: ignore[arg-type]
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


def test_unknown_variants_and_baselines_are_refused(tmp_path: Path, suite: Suite) -> None:
    with pytest.raises(InvalidRequest, match="variant 'fast' is unknown; variants are default, tuned"):
        measured(tmp_path / "x.json", suite, FakeWorkbench(), "fast")
    with pytest.raises(InvalidRequest, match=r"baseline 'torch\.matmul' cannot be measured on cpu here"):
        measured(tmp_path / "x.json", suite, FakeWorkbench(), baselines=("torch.matmul",))
    bench = FakeWorkbench()
    assert measured(tmp_path / "x.json", suite, bench, "default", baselines=()).document["summary"] == {}


def test_a_suite_is_found_by_name_from_a_checkout_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_suite("x86").name == "x86.json"
    assert find_suite(str(tmp_path / "mine.json")) == tmp_path / "mine.json"
    with pytest.raises(InvalidRequest, match="suites are deepgemm, hopper, llama"):
        find_suite("absent")
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
    ):
        assert cli.main(["bench", *arguments, "--data", str(tmp_path / "data")]) == 2
        assert says in capsys.readouterr().err.replace("\n", " ")
