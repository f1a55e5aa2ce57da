"""The wgmma family on a Hopper GPU: named paths, and random problems with random configs, verified in full.

What is verified is the signed package through the loader, at the level of a certificate: the exact and the normal test,
guard bands, poisoned outputs, m at both ends of a range and between.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from benchmarks.verification.cases import Case, random_cases
from tests.wgmma_paths import named_cases
from tirgemm.detect import devices
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.compile import Binary
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU")]

FAMILY = Wgmma()
H200 = named_device("sm_90a")
# As many again as the named ones, about; ``benchmarks/verification`` runs hundreds, with every choice of every knob.
RANDOM = 80

CASES = [*named_cases(H200), *random_cases(FAMILY, H200, RANDOM, seed=1)] if GPUS else []
Builds = dict[Case, "Future[Binary]"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with Workbench(GPUS[0], MemoryStore(), lock_dir=tmp_path_factory.mktemp("locks"), processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> Builds:
    """Every case's build, all begun at once."""
    return {case: bench.build(case.gemm, case.config) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[str(case.gemm) for case in CASES])
def test_kernel_computes_the_problem(bench: Workbench, builds: Builds, case: Case) -> None:
    gemm, config = case.gemm, case.config
    binary = builds[case].result()
    assert binary.resources["spill_bytes"] == 0
    assert bench.measurer is not None
    found = bench.measurer.verify(bench.package(gemm, config, binary), level="certificate")
    assert found.passed, f"{config}: {found.tests}"


@pytest.mark.parametrize("regime", ["sustained", "isolated"])
@pytest.mark.parametrize("text", ["4096x4096x4096:f16:nt", "16x576x7168:f16:nt", "1024x1024x1024:bf16:nn"])
def test_default_is_right_and_can_be_timed(bench: Workbench, text: str, regime: str) -> None:
    gemm = Gemm.parse(text)
    assert bench.measurer is not None
    package = bench.package(gemm, config := FAMILY.default(gemm, H200, regime), bench.build(gemm, config).result())
    found, samples = bench.measurer.evaluate(package, regime)
    assert found.passed, f"{config}: {found.tests}"
    assert samples is not None
