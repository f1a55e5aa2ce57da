"""Tests of every family's kernels on a GPU: they compute random and named problems, and be timed by default.

What is verified is the signed package through the loader, at the level of a certificate: the exact and the normal test,
guard bands, poisoned outputs, m at both ends of a range and between.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import ClassVar

import pytest

from tirgemm.device import Device
from tirgemm.families.base import Family
from tirgemm.gemm import REGIMES, Gemm, Regime
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench
from verification.cases import Case

Builds = dict[Case, "Future[Binary]"]
PROCESSES = 16


class FamilyOnGpu:
    """Inherit as ``class TestX(FamilyOnGpu)`` and set the class attributes; ``gpus`` and ``cases`` are empty without a
    GPU."""

    family: ClassVar[Family]
    gpus: ClassVar[list[Device]]
    cases: ClassVar[list[Case]]
    timed: ClassVar[tuple[str, ...]]
    """Problems whose default is timed in both regimes."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each case, and for each problem and regime that is timed."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases, ids=[f"{case.gemm} {case.config.digest}" for case in self.cases])
        if "timed_gemm" in metafunc.fixturenames:
            metafunc.parametrize("timed_gemm", self.timed)
            metafunc.parametrize("regime", REGIMES)

    @pytest.fixture(scope="class")
    def bench(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
        locks = tmp_path_factory.mktemp("locks")
        with Workbench(self.gpus[0], MemoryStore(), lock_dir=locks, processes=PROCESSES) as bench:
            yield bench

    @pytest.fixture(scope="class")
    def builds(self, bench: Workbench) -> Builds:
        """Every case's build, all begun at once."""
        return {case: bench.build(case.gemm, case.config) for case in self.cases}

    def test_kernel_computes_the_problem(self, bench: Workbench, builds: Builds, case: Case) -> None:
        binary = builds[case].result()
        assert binary.resources["spill_bytes"] == 0
        assert bench.measurer is not None
        actual = bench.measurer.verify(bench.package(case.gemm, case.config, binary), level="certificate")
        assert actual.passed, f"{case.config}: {actual.tests}"

    def test_default_is_right_and_can_be_timed(self, bench: Workbench, timed_gemm: str, regime: Regime) -> None:
        gemm = Gemm.parse(timed_gemm)
        assert bench.measurer is not None
        config = self.family.default(gemm, self.gpus[0], regime)
        package = bench.package(gemm, config, bench.build(gemm, config).result())
        actual, samples = bench.measurer.evaluate(package, regime)
        assert actual.passed, f"{config}: {actual.tests}"
        assert samples is not None
