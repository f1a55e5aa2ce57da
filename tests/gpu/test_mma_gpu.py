"""The mma family on a GPU: random problems with random configs and the defaults of its suite, verified in full.

What is verified is the signed package through the loader, at the level of a certificate: the exact and the normal test,
guard bands, poisoned outputs, m at both ends of a range and between.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from benchmarks.verification.cases import Case, random_cases
from tirgemm.detect import devices
from tirgemm.families.mma import Mma
from tirgemm.gemm import LAYOUTS, Gemm
from tirgemm.hardware import ARCHITECTURES
from tirgemm.tuning.compile import Binary
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch in ARCHITECTURES]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason=f"this machine has no GPU of {', '.join(ARCHITECTURES)}"),
]

FAMILY = Mma()
# ``benchmarks/verification`` runs hundreds, with every choice of every knob.
RANDOM = 60
# Every layout of operands with every layout of shared memory, at sizes that end inside tiles.
NAMED = [
    (f"1000x1032x2056:{'bf16' if number % 2 else 'f16'}:{layout}", shared)
    for number, layout in enumerate(LAYOUTS)
    for shared in ("none", "padded", "permuted")
]


def _cases() -> list[Case]:
    device = GPUS[0]
    named = [Gemm.parse(text) for text, _ in NAMED]
    configs = [
        FAMILY.default(gemm, device, "sustained").with_(shared=shared)
        for gemm, (_, shared) in zip(named, NAMED, strict=True)
    ]
    cases = [Case(gemm, config) for gemm, config in zip(named, configs, strict=True)]
    return [*cases, *random_cases(FAMILY, device, RANDOM, seed=1)]


CASES = _cases() if GPUS else []
Builds = dict[Case, "Future[Binary]"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with Workbench(GPUS[0], MemoryStore(), lock_dir=tmp_path_factory.mktemp("locks"), processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> Builds:
    """Every case's build, all begun at once."""
    return {case: bench.build(case.gemm, case.config) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.gemm} {case.config['shared']}" for case in CASES])
def test_kernel_computes_the_problem(bench: Workbench, builds: Builds, case: Case) -> None:
    binary = builds[case].result()
    assert binary.resources["spill_bytes"] == 0
    assert bench.measurer is not None
    found = bench.measurer.verify(bench.package(case.gemm, case.config, binary), level="certificate")
    assert found.passed, f"{case.config}: {found.tests}"


@pytest.mark.parametrize("regime", ["sustained", "isolated"])
@pytest.mark.parametrize("text", ["4096x4096x4096:f16:nt", "64x4096x8192:f16:nn", "1023x1021x1027:bf16:nt"])
def test_default_is_right_and_can_be_timed(bench: Workbench, text: str, regime: str) -> None:
    gemm = Gemm.parse(text)
    assert bench.measurer is not None
    config = FAMILY.default(gemm, GPUS[0], regime)
    package = bench.package(gemm, config, bench.build(gemm, config).result())
    found, samples = bench.measurer.evaluate(package, regime)
    assert found.passed, f"{config}: {found.tests}"
    assert samples is not None
