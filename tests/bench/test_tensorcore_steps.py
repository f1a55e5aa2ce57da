"""The steps from WMMA to mma.sync: each one change from its parent, each valid where the goals are set, told in a
table."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import tensorcore_steps
from benchmarks.tensorcore_steps import STEPS, SUITE, Step, config
from benchmarks.tensorcore_tables import TABLES
from tirgemm.bench import results
from tirgemm.bench.suite_file import Suite
from tirgemm.config import Config
from tirgemm.errors import BuildFailed
from tirgemm.families import family_named
from tirgemm.families.base import rejected
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.measure import MeasurementTimedOut
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import SampleSet

H200 = named_device("sm_90a")
GEMMS = Suite.read(SUITE).gemms
BY_NAME = {step.name: step for step in STEPS}
CHILDREN = [step for step in STEPS if step.parent]


def test_steps_are_a_tree_whose_parents_come_first() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    for number, step in enumerate(STEPS):
        assert (step.parent is None) == (number == 0)
        assert step.parent in {None, *names[:number]}


@pytest.mark.parametrize("gemm", GEMMS, ids=str)
def test_every_step_is_a_config_of_its_family_on_the_h200(gemm: Gemm) -> None:
    for step in STEPS:
        made = config(step.name, gemm, H200)
        assert made.family == step.family
        actual = family_named(step.family)
        actual.space(gemm, H200).check(made)
        assert rejected(actual, gemm, made, H200) is None, step.name


@pytest.mark.parametrize("step", CHILDREN, ids=lambda step: step.name)
def test_a_step_changes_what_it_says_and_the_source_with_it(step: Step) -> None:
    gemm = GEMMS[0]
    assert step.parent is not None
    mine, before = config(step.name, gemm, H200), config(step.parent, gemm, H200)
    if mine.family == before.family:
        changed = {name: value for name, value in mine.knobs if before[name] != value}
        assert changed == dict(step.knobs)
    else:
        shared = {name for name, _ in mine.knobs} & {name for name, _ in before.knobs} - {"epilogue"}
        assert all(mine[name] == before[name] for name in shared)
    sources = [
        cuda.lower(family_named(one.family).instantiate(gemm, one, H200), H200.arch)[1] for one in (mine, before)
    ]
    assert sources[0] != sources[1]


def test_the_table_shows_gains_shares_and_failures(tmp_path: Path) -> None:
    gemm = GEMMS[0]
    path = tmp_path / "nvidia-h200" / "tensorcore_steps.sustained.json"
    about = {"device": "NVIDIA H200", "date": "2026-01-02T03:04:05"}
    file = results.ResultsFile(path, "tensorcore_steps", "sustained", about, resume=False)
    assert "Not measured yet" in TABLES["steps"](tmp_path, tmp_path)
    times = {"wmma": 800.0, "wmma_padded": 500.0}
    for name, us in times.items():
        beside: dict[str, tuple[float, ...]] = {"torch.matmul": (200.0,) * 24}
        beside |= {"wmma": (800.0,) * 24} if name != "wmma" else {}
        samples = SampleSet((us,) * 24, "selection", beside, {})
        file.put(
            results.measured_row(
                gemm,
                config(name, gemm, H200),
                name,
                [samples],
                results.MeasuredKernel(0.1, 0, "0" * 64, "1" * 64),
            )
        )
    file.put(results.unmeasured_row(gemm, config("wmma_pad16", gemm, H200), "wmma_pad16", "build_failed", "no"))
    table = TABLES["steps"](tmp_path, tmp_path)
    assert "NVIDIA H200, sustained, 2026-01-02:" in table
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in table.splitlines()
        if "|" in line
    }
    assert rows["`wmma`"][2:] == [f"{gemm.flops / 800e6:.0f}", "", "", "0.250"]
    assert rows["`wmma_padded`"] == [
        "`wmma`",
        BY_NAME["wmma_padded"].changed,
        f"{gemm.flops / 500e6:.0f}",
        "1.600",
        "1.600",
        "0.400",
    ]
    assert rows["`wmma_pad16`"][1] == "build_failed: no"


class MadeUp:
    """Workbench and measurer in one: a package is its step's name; each step is a tenth faster than the one before."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = H200.with_(uuid="GPU-1")
        self.measurer = self
        self.us = {step.name: 1000.0 * 0.9**number for number, step in enumerate(STEPS)}

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def baselines(self) -> tuple[str, ...]:
        return ("torch.matmul", "cutlass")

    def build(self, gemm: Gemm, made: Config) -> Future[Binary]:
        future: Future[Binary] = Future()
        if self._name(gemm, made) == "wmma_pad16":
            future.set_exception(BuildFailed("NVRTC refuses it"))
        else:
            resources = {"registers": 128, "spill_bytes": 0, "shared_bytes": 1024}
            future.set_result(Binary(b"", "cubin", Launch((), (), ()), {"kernel.cu": ""}, (), resources))
        return future

    def package(self, gemm: Gemm, made: Config, binary: Binary) -> bytes:
        del binary
        return self._name(gemm, made).encode()

    def _name(self, gemm: Gemm, made: Config) -> str:
        return next(step.name for step in STEPS if config(step.name, gemm, self.device) == made)

    def verify(self, package: bytes, *, level: str, seed: int) -> Any:
        del package, seed
        return SimpleNamespace(passed=level == "candidate", error=0.5)

    def time(
        self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], baselines: tuple[str, ...], **_: Any
    ) -> SampleSet:
        assert options.shared
        names = [data.decode() for data in (package, *against.values())]
        if "wmma_stages" in names:
            raise MeasurementTimedOut("60 s")
        others: dict[str, tuple[float, ...]] = {name: (self.us[data.decode()],) * 24 for name, data in against.items()}
        beside = dict.fromkeys(baselines, (400.0,) * 24)
        return SampleSet(
            (self.us[names[0]],) * 24, "selection", others | beside, {"regime": options.regime, "at": "now"}
        )


def test_all_steps_are_measured_together_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = MadeUp()
    monkeypatch.setattr(tensorcore_steps, "Workbench", lambda *_, **__: bench)
    monkeypatch.setattr(tensorcore_steps, "detect_device", lambda _: bench.device)
    path = tmp_path / "tensorcore_steps.sustained.json"
    gemm = GEMMS[0]
    arguments = [str(gemm), "--device", "cuda:0", "--out", str(path), "--resume"]
    assert tensorcore_steps.main(arguments) == 1  # a step did not build
    rows = {row["variant"]: row for row in results.load(path)["rows"]}
    assert list(rows) == [step.name for step in STEPS]
    assert rows["wmma_pad16"]["status"] == "build_failed"
    assert rows["wmma_stages"]["status"] == "timed_out"
    for step in STEPS:
        if step.name in ("wmma_pad16", "wmma_stages"):
            continue
        row = rows[step.name]
        assert row["status"] == "measured"
        assert row["config_hash"] == config(step.name, gemm, bench.device).digest
        parent = [step.parent] if step.parent and step.parent != "wmma_stages" else []
        assert set(row["baselines"]) == {"torch.matmul", "cutlass", *parent}
        if step.parent in parent:
            assert row["baselines"][step.parent]["median_us"] == pytest.approx(bench.us[step.parent], rel=1e-4)
    # No time is left to begin another problem.
    assert tensorcore_steps.main([str(GEMMS[1]), *arguments[1:], "--limit", "-1"]) == 1
    assert len(results.load(path)["rows"]) == len(STEPS)
