"""A workbench and a tuner that measure nothing, for runs of suites."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.helpers.artifact_samples import CONFIG, SIGNER, cpu, packed, rows_binary
from tirgemm import Config, Gemm
from tirgemm.artifact import Trust, read
from tirgemm.bench.results import ResultsFile, environment
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suite_run import Bench, BenchOptions, Work
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.measure import MeasurementCrashed
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
