"""The ladder measured on a made-up GPU."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from tirgemm.bench.ladder_report import RungFigures, steps
from tirgemm.bench.ladder_run import LadderRun
from tirgemm.config import Config
from tirgemm.errors import BuildFailed
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.measure import MeasurementCrashed
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.records.memory_store import MemoryStore

GEMM = Gemm.parse("4096x4096x4096:f32:nn")

BIG = Gemm.parse("16384x16384x16384:f32:nn")

H200 = named_device("sm_90a")

NAMES = [rung.name for rung in ladder.RUNGS]

_steps = cache(steps)


@dataclass
class MadeUp:
    """Workbench and measurer in one: a package is its rung's name, which takes as long as ``us`` says, else 1000 us."""

    us: dict[str, float] = field(default_factory=dict)
    wrong: str = ""
    unbuildable: str = ""
    dies: str = ""
    """The rung under which every run dies, or all of them (*)."""
    device: Any = H200
    store: MemoryStore = field(default_factory=MemoryStore)
    timed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def measurer(self) -> MadeUp:
        return self

    def baselines(self) -> tuple[str, ...]:
        return ("torch.matmul", "cublaslt_best", "triton")

    def build(self, gemm: Gemm, config: Config) -> Future[Binary]:
        future: Future[Binary] = Future()
        if self.name_of(gemm, config) == self.unbuildable:
            future.set_exception(BuildFailed("NVRTC refuses it"))
        else:
            resources = {"registers": 128, "spill_bytes": 0, "shared_bytes": 1024}
            future.set_result(Binary(b"", "so", Launch((), (), ()), {"kernel.ll": ""}, (), resources))
        return future

    def package(self, gemm: Gemm, config: Config, binary: Binary) -> bytes:
        del binary
        return self.name_of(gemm, config).encode()

    def name_of(self, gemm: Gemm, config: Config) -> str:
        return next((step.name for step in _steps(gemm, self.device) if step.config == config), "tuned")

    def verify(self, package: bytes, *, level: str, seed: int) -> Any:
        assert (level, seed) == ("candidate", 5)
        return SimpleNamespace(passed=package.decode() != self.wrong, error=0.5)

    def time(
        self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], baselines: tuple[str, ...], **_: Any
    ) -> SampleSet:
        if self.dies in ("*", *(data.decode() for data in (package, *against.values()))):
            raise MeasurementCrashed("the measuring process died: signal 11")
        run = {"package": package.decode(), "shared": options.shared, "against": against, "baselines": baselines}
        self.timed.append(run)

        def taken(name: str) -> tuple[float, ...]:
            return tuple(self.us.get(name, 1000.0) * (1 + 0.001 * number) for number in range(6))

        others = {name: taken(data.decode()) for name, data in against.items()}
        beside = {name: taken(name) for name in baselines}
        conditions = {
            "at": "2026-11-21",
            "shared": options.shared,
            "clock_mhz": 1980,
            "throttled": [],
            "power_w": 600,
        }
        return SampleSet(taken(package.decode()), "selection", others | beside, conditions)


def rows_of(
    made_up: MadeUp, gemm: Gemm = GEMM, known: list[dict[str, Any]] | None = None, **options: Any
) -> list[dict[str, Any]]:
    run = LadderRun(cast(Any, made_up), seed=5, **options)
    return run.measure(gemm, "sustained", known or [])


def entry(entries: list[RungFigures], name: str) -> RungFigures:
    return next(actual for actual in entries if actual.step.name == name)
