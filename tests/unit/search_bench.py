"""A workbench for the search over many problems, on a simulated machine: builds are at once, times are the simulator's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from tests.unit.toy_family import DEVICE, simulated_us
from tirgemm.config import Config
from tirgemm.errors import BuildFailed
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import MeasurementCrashed
from tirgemm.tuning.records import SampleSet

Fate = Callable[[Gemm, Config], str]


class SearchBench:
    """``fate`` says what becomes of a config: right, wrong, unbuildable, crashes (verified), dies (timed).

    The reference takes ``reference_us(gemm)``; every session runs at another clock.
    """

    device = DEVICE
    pool = SimpleNamespace(processes=2)

    def __init__(self, fate: Fate = lambda *_: "right", reference_us: Callable[[Gemm], float] = lambda _: 50.0) -> None:
        self.fate = fate
        self.reference_us = reference_us
        self.measurer: Any = self
        self.built: list[tuple[Gemm, Config]] = []
        self.timed: list[tuple[Gemm, str, list[Config]]] = []
        self._packages: dict[bytes, tuple[Gemm, Config]] = {}
        self._lock = threading.Lock()
        self._slow = 0

    # -- the workbench -------------------------------------------------------------------------

    def build(self, gemm: Gemm, config: Config) -> Future[Any]:
        self.built.append((gemm, config))
        future: Future[Any] = Future()
        if self.fate(gemm, config) == "unbuildable":
            future.set_exception(BuildFailed("ptxas: register allocation failed"))
        else:
            future.set_result(SimpleNamespace(resources={"registers": 168, "spill_bytes": 0, "shared_bytes": 200_000}))
        return future

    def package(self, gemm: Gemm, config: Config, _binary: Any) -> bytes:
        with self._lock:
            name = f"{gemm} {config}".encode()
            self._packages[name] = gemm, config
            return name

    # -- the measurer --------------------------------------------------------------------------

    def baselines(self) -> tuple[str, ...]:
        return ("torch.matmul",)

    def stream(self) -> SampleSet:
        return SampleSet((250.0,), "selection", {}, {"bytes": 1_000_000_000})

    def verify(self, package: bytes, *, level: str, seed: int) -> Any:
        assert (level, seed) == ("candidate", 0)
        fate = self.fate(*self._packages[package])
        if fate == "crashes":
            raise MeasurementCrashed("the measuring process died: signal 11 (SIGSEGV)")
        test = {"name": "exact", "passed": fate != "wrong", "error": 9.0, "message": "element [0, 1]"}
        return SimpleNamespace(passed=fate != "wrong", error=9.0 if fate == "wrong" else 0.25, tests=(test,))

    def time(
        self, package: bytes, regime: str, *, against: Mapping[str, bytes], baselines: tuple[str, ...], **options: Any
    ) -> SampleSet:
        assert options["shared"] is True
        assert options["reason"] == "search"
        found = [self._packages[name] for name in (package, *against.values())]
        gemm, configs = found[0][0], [config for _, config in found]
        assert all(other == gemm for other, _ in found), "one session is about one problem"
        self.timed.append((gemm, regime, configs))
        if any(self.fate(gemm, config) == "dies" for config in configs):
            raise MeasurementCrashed("the measuring process died: signal 9 (SIGKILL)")
        self._slow = (self._slow + 1) % 3
        clock = 1 + 0.1 * self._slow
        times = [clock * simulated_us(gemm, config) * (1.2 if regime == "isolated" else 1.0) for config in configs]
        others = {digest: (us, us * 1.01) for digest, us in zip(against, times[1:], strict=True)}
        others |= dict.fromkeys(baselines, (clock * self.reference_us(gemm),))
        return SampleSet((times[0], times[0] * 1.01), "search", others, {"clock_mhz": 1980, "power_w": 500.5})
