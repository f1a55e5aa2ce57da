"""A workbench whose builds and measurements are made up: what the tuner's stages do with them is what is tested."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from tests.waiting import until
from tirgemm.artifact import Signer, Trust, read
from tirgemm.artifact.manifest import Manifest
from tirgemm.config import Config
from tirgemm.detect import device as detect
from tirgemm.errors import BuildFailed, Cancelled
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch, Pointer, scalar_args, tensor_args
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.measure.yardstick import Yardsticks
from tirgemm.tuning.process.interrupts import StopSignal
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.verify.result import Verification
from tirgemm.tuning.workbench import Workbench

Fate = Callable[[Config], str]
# With AVX-512 wherever the tests run: what a space holds, and so what is proposed, depends on it.
_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_HERE = detect("cpu")
CPU = _HERE.with_(arch="x86-64-v4", features=tuple(sorted({*_HERE.features, *_AVX512})))


def gpu_bench() -> FakeBench:
    """A bench whose device is a Hopper GPU."""
    bench = FakeBench()
    bench.device = named_device("sm_90a").with_(uuid="GPU-0", index=0)
    return bench


def hashed_us(config: Config) -> float:
    """A time for every config, spread from 10 to 110 us."""
    return 10 + int(config.digest[:4], 16) % 1000 / 10


@dataclass(frozen=True)
class Timed:
    """A run that was asked for."""

    options: RaceOptions
    configs: list[Config]
    baselines: tuple[str, ...]


class FakeMeasurer:
    """``fate`` says what becomes of a config: right, wrong, uncertified, hangs, crashes, blocks (until cancelled).

    One of an invariant problem that is ``alone`` is right and gives rows bits of its own. One whose calls are launched
    dependently and that ``overlaps`` is right alone and wrong in chains; of one that is ``unchained`` no chains are
    made.

    One that ``dies`` is right in the search, and takes the process down in every race.
    """

    unusable = False

    def __init__(self, bench: FakeBench) -> None:
        self.bench = bench
        self.evaluated: list[Config] = []
        self.kills = 0  # how many of the next requests outside the search the process dies under
        self.timed: list[Timed] = []
        self.offered: tuple[str, ...] = ("numpy_f32",)

    def baselines(self) -> tuple[str, ...]:
        return self.offered

    def warm(self) -> None:
        self.bench.begun.append("measuring")

    def manifest(self, package: bytes) -> Manifest:
        """The manifest of one of the bench's packages."""
        return _manifest(package, self.bench.signer.public)

    def _config(self, package: bytes) -> Config:
        return self.manifest(package).config

    def _verification(self, package: bytes, level: str) -> Verification:
        fate = self.bench.fate(self._config(package))
        bad = fate == "wrong" or (fate == "uncertified" and level == "certificate")
        test = {
            "name": "exact",
            "passed": not bad,
            "error": 7.0 if bad else 0.0,
            "message": "element [1, 2]" if bad else "",
        }
        manifest = self.manifest(package)
        rows: dict[str, Any] = {
            "name": "invariant",
            "passed": True,
            "signature": ("a" if fate == "alone" else "b") * 64,
        }
        tests = [test, rows] if manifest.gemm.invariant and level == "certificate" else [test]
        if manifest.dependent_launch and level == "certificate" and fate != "unchained":
            tests.append({"name": "chain", "passed": fate != "overlaps", "error": 0.0, "message": "other bits"})
        passed = all(test["passed"] for test in tests)
        return Verification(passed, 7.0 if bad else 0.0, tuple(tests), "made up", manifest.kernel_sha256)

    def verify(self, package: bytes, *, level: str, seed: int, cancel: StopSignal | None = None) -> Verification:
        del seed, cancel
        self._maybe_die()
        return self._verification(package, level)

    def _maybe_die(self) -> None:
        if self.kills:
            self.kills -= 1
            raise MeasurementCrashed("the measuring process died: signal 9 (SIGKILL)")

    def evaluate(
        self, package: bytes, regime: str, *, seed: int, against: dict[str, bytes], cancel: StopSignal
    ) -> tuple[Verification, SampleSet | None]:
        del regime, seed, against
        config = self._config(package)
        self.evaluated.append(config)
        fate = self.bench.fate(config)
        if fate == "hangs":
            raise MeasurementTimedOut("no sign of life")
        if fate == "crashes":
            raise MeasurementCrashed("signal 11")
        if fate == "blocks":
            until(cancel.is_set)
            raise Cancelled("cancelled")
        actual = self._verification(package, "candidate")
        return actual, SampleSet((self.bench.us(config),) * 5) if actual.passed else None

    def stream(self) -> SampleSet:
        return SampleSet((10.0,) * 5, conditions={"bytes": 1 << 30, "at": "2026-01-01T00:00:00Z"})

    def time(
        self,
        package: bytes,
        options: RaceOptions,
        *,
        against: dict[str, bytes],
        baselines: tuple[str, ...],
        cancel: Any,
    ) -> SampleSet:
        del cancel
        self._maybe_die()
        configs = [self._config(data) for data in (package, *against.values())]
        self.timed.append(Timed(options, configs, baselines))
        for config in configs:
            if self.bench.fate(config) == "dies":
                raise MeasurementCrashed("the measuring process died: signal 11 (SIGSEGV)")
        drift = self.bench.drift(options)
        ours, *others = [(drift * self.bench.us(config),) * 6 for config in configs]
        beside: dict[str, tuple[float, ...]] = dict(zip(against, others, strict=True))
        beside |= dict.fromkeys(baselines, (500.0,) * 6)
        return SampleSet(ours, options.reason, beside, {"regime": options.regime})


@lru_cache(maxsize=1024)
def _manifest(package: bytes, key: str) -> Manifest:
    """Read once: a run asks for the same package many times."""
    return read(package, Trust.of(key)).manifest


class FakeBench(Workbench):
    """Builds at once; nothing is compiled or run."""

    def __init__(
        self, fate: Fate = lambda _: "right", us: Callable[[Config], float] = hashed_us, store: Any = None
    ) -> None:
        self.device = CPU
        self.store = store or MemoryStore()
        self.yardsticks = Yardsticks()
        self.ending: Exception = MeasurementCrashed("signal 11")
        self.signer = Signer.generate()
        self.fate, self.us = fate, us
        self.drift: Callable[[RaceOptions], float] = lambda _: 1.0  # by which all is slower in a run
        self.code: Callable[[Config], Config] = lambda config: config  # the config whose machine code one compiles to
        self._ahead: dict[tuple[Gemm, Config], Future[Binary]] = {}  # builds that nobody asked for yet
        self.abandoned = 0  # how often the builds were given up
        self.pool: Any = SimpleNamespace(processes=2, waiting="", abandon=self._abandon, warm=self._warm_builds)
        self.fake = FakeMeasurer(self)
        self.measurer: Any = self.fake
        self.built: list[Config] = []
        self.begun: list[str] = []

    def _warm_builds(self) -> None:
        self.begun.append("builds")

    def _abandon(self) -> None:
        self.abandoned += 1

    def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        del urgent
        if (begun := self._ahead.pop((gemm, config), None)) is not None:
            return begun
        self.built.append(config)
        future: Future[Binary] = Future()
        if self.fate(config) == "unbuildable":
            future.set_exception(BuildFailed("the build process died: signal 11 (SIGSEGV)"))
            return future
        launch = Launch(tensor_args(gemm), scalar_args(gemm), (KernelLaunch("made_up", (Pointer("a"),)),))
        cuda = self.device.kind == "cuda"
        machine = bytes([190 if cuda else 62, 0])
        header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + b"\x03\0" + machine
        data = header.ljust(64, b"\0") + hashlib.sha256(self.code(config).digest.encode()).digest()
        future.set_result(
            Binary(data, "cubin" if cuda else "so", launch, {"kernel.cu" if cuda else "kernel.ll": str(config)}, (), {})
        )
        return future
