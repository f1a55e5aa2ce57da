"""WMMA kernels on the GPU: every layout by every way to load, and random problems with random configs, verified in full.

What is verified is the signed package through the loader, at the level of a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from benchmarks.verification.cases import Case, named_config, random_cases
from tirgemm.detect import devices
from tirgemm.families.wmma import Wmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.compile import Binary
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU")]

FAMILY = Wmma()
# ``benchmarks/verification`` runs hundreds, with every choice of every knob.
RANDOM = 40
NAMED = (
    ("4000x4000x1000:f16:nt", "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=4 registers=2 pad=8 raster=4"),
    ("4000x4000x1000:f16:nn", "tile_m=256 tile_n=128 tile_k=32 warps_m=4 warps_n=2 stages=3 registers=1 pad=0 raster=2"),
    ("4000x4008x1000:bf16:tn", "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=3 registers=2 pad=16 raster=2"),
    ("4000x4008x1000:bf16:tt:beta:bias:act=silu", "tile_m=128 tile_n=128 tile_k=64 warps_m=2 warps_n=2 stages=2 registers=2 pad=8"),
    ("4001x4003x1000:f16:nt:acc=f16", "tile_m=128 tile_n=256 tile_k=32 warps_m=2 warps_n=4 stages=3 registers=2 pad=8"),
    ("2001x2003x1004:f16:nt:alpha", "tile_m=64 tile_n=128 tile_k=32 warps_m=2 warps_n=2 stages=4 registers=2 pad=8"),
    ("2002x2004x1004:bf16:tn:lda=2004:beta", "tile_m=64 tile_n=128 tile_k=32 warps_m=2 warps_n=2 stages=3 registers=1 pad=8"),
    ("2001x2002x1002:f16:nn:lda=1006:bias:act=relu", "tile_m=128 tile_n=64 tile_k=32 warps_m=2 warps_n=2 stages=3 registers=2 pad=8"),
    ("2001x2003x1005:f16:tt:out=f32", "tile_m=128 tile_n=64 tile_k=32 warps_m=2 warps_n=2 stages=3 registers=2 pad=8 load=repack"),
    ("128x576x7168:f16:nt:beta:bias", "tile_m=64 tile_n=64 tile_k=64 warps_m=2 warps_n=2 stages=4 registers=2 pad=8 split=6"),
    ("1..100x520x4104:bf16:tt:batch=2", "tile_m=32 tile_n=64 tile_k=64 warps_m=2 warps_n=2 stages=3 registers=2 pad=8 split=4"),
)  # fmt: skip


def cases() -> list[Case]:
    device = named_device(GPUS[0].arch)
    named = [Case(gemm := Gemm.parse(text), named_config(FAMILY, gemm, device, knobs)) for text, knobs in NAMED]
    return [*named, *random_cases(FAMILY, device, RANDOM, seed=1)]


CASES = cases() if GPUS else []
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
    config = FAMILY.default(gemm, GPUS[0], regime)
    package = bench.package(gemm, config, bench.build(gemm, config).result())
    found, samples = bench.measurer.evaluate(package, regime)
    assert found.passed, f"{config}: {found.tests}"
    assert samples is not None
