"""The wgmma family on a Hopper GPU: every path named, and random problems with random configs, verified in full.

What is verified is the signed package through the loader, at the level of a certificate: the exact and the normal test,
guard bands, poisoned outputs, m at both ends of a range and between.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tirgemm.config import Config
from tirgemm.detect import devices
from tirgemm.errors import InvalidGemm
from tirgemm.families.base import rejected
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wgmma.plan import Plan
from tirgemm.families.wgmma.space import TILES_M, TILES_N
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.compile import Binary
from tirgemm.tuning.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU")]

FAMILY = Wgmma()
H200 = named_device("sm_90a")
# Wider tiles of 192 and 256 rows have more accumulators than there are registers.
TILES = [(m, n) for m in TILES_M for n in TILES_N if m < 192 or n <= 192]

# tile_m, tile_n, tile_k, stages, schedule, cluster_m, cluster_n, split, epilogue, order, group, l2_promotion
NAMED: list[tuple[str, tuple[object, ...]]] = [
    ("2000x1000x1000:f16:nt", (128, 128, 64, 4, "cooperative", 1, 1, 1, "tma", "m", 4, 2)),
    ("2000x1000x1000:f16:nn", (128, 128, 64, 4, "cooperative", 1, 1, 1, "tma", "m", 4, 2)),
    ("2000x1000x1000:f16:tn", (128, 128, 64, 4, "cooperative", 1, 1, 1, "tma", "m", 4, 2)),
    ("1000x1000x1000:bf16:tt", (128, 96, 128, 2, "cooperative", 1, 1, 1, "tma", "m", 4, 2)),
    ("1000x1000x1000:bf16:nn", (128, 96, 64, 2, "cooperative", 2, 1, 1, "tma", "m", 4, 2)),
    ("2000x1600x520:f16:nt", (128, 160, 64, 3, "pingpong", 2, 1, 1, "tma", "m", 8, 2)),
    ("2000x4000x520:f16:nn", (128, 192, 64, 4, "pingpong", 1, 2, 1, "tma", "n", 4, 3)),
    ("2000x1600x520:f16:tn", (256, 192, 64, 3, "cooperative", 1, 2, 1, "tma", "m", 4, 2)),
    ("2000x2000x200:bf16:tt", (192, 128, 64, 3, "cooperative", 2, 1, 1, "tma", "m", 4, 2)),
    ("3001x2001x72:f16:nt:beta:bias:act=silu", (64, 32, 64, 5, "pingpong", 1, 1, 1, "staged", "m", 16, 0)),
    ("777x2003x136:f16:nt:alpha:act=gelu", (128, 64, 128, 2, "cooperative", 1, 2, 1, "staged", "m", 4, 2)),
    ("777x1003x136:bf16:nt:beta:ldc=1005", (64, 16, 64, 3, "pingpong", 2, 1, 1, "direct", "n", 4, 2)),
    ("2777x2004x136:f16:nt:out=f32:beta:bias", (256, 128, 64, 3, "cooperative", 1, 1, 1, "direct", "m", 4, 2)),
    ("16x576x7168:f16:nt", (64, 64, 128, 6, "cooperative", 1, 1, 8, "direct", "m", 1, 2)),
    ("1..64x577x2000:f16:nt:alpha:beta:bias:act=gelu_tanh:batch=2", (64, 64, 64, 4, "cooperative", 1, 1, 4, "direct", "m", 1, 2)),
    ("1..700x1032x264:bf16:nn:ldb=1040:batch=2:beta", (128, 128, 64, 4, "pingpong", 2, 1, 1, "tma", "m", 4, 2)),
    ("1..9x1000x1:f16:nt:lda=8:ldb=8:bias", (64, 32, 64, 2, "cooperative", 1, 1, 1, "tma", "m", 1, 2)),
    ("1x1x1:f16:nt:lda=8:ldb=8", (64, 16, 64, 2, "cooperative", 1, 1, 1, "staged", "m", 1, 2)),
]  # fmt: skip


def named_cases() -> Iterator[tuple[Gemm, Config]]:
    for text, knobs in NAMED:
        gemm = Gemm.parse(text)
        yield gemm, Plan(gemm, H200.units, *knobs).config  # type: ignore[arg-type]


def random_cases() -> Iterator[tuple[Gemm, Config]]:
    """For every tile a problem with odd sizes, gaps, batches, ranges and epilogues, and a config that the rules accept.

    Most problems are too small for the large tiles, and are drawn until one is not.
    """
    rng = random.Random(2024)
    for tile_m, tile_n in TILES:
        yield random_case(rng, tile_m, tile_n)


def random_case(rng: random.Random, tile_m: int, tile_n: int) -> tuple[Gemm, Config]:
    while True:
        gemm = random_gemm(rng)
        if gemm is None or FAMILY.supports(gemm, H200) is not None:
            continue
        space = FAMILY.space(gemm, H200)
        for _ in range(100):
            config = space.at(rng.randrange(space.size)).with_(tile_m=tile_m, tile_n=tile_n)
            if rejected(FAMILY, gemm, config, H200) is None:
                return gemm, config


def random_gemm(rng: random.Random) -> Gemm | None:
    m = rng.choice([1, 17, 64, 65, 129, 333, 1000, 2500, 2501, 4099, 6000])
    n = rng.choice([1, 7, 33, 100, 257, 576, 1000, 2049, 2304, 4104])
    k = rng.choice([1, 16, 63, 65, 72, 200, 523, 1023, 2048])
    layout = rng.choice(["nt", "nn", "tn", "tt"])
    text = f"{f'{rng.randint(1, m)}..{m}' if rng.random() < 0.3 and m > 1 else m}x{n}x{k}:{rng.choice(['f16', 'bf16'])}:{layout}"
    for name, columns in (("lda", m if layout[0] == "t" else k), ("ldb", k if layout[1] == "t" else n)):
        text += f":{name}={(columns + rng.choice([7, 23])) // 8 * 8}"
    if rng.random() < 0.25:
        text += f":ldd={n + rng.choice([1, 2, 8])}"
    if rng.random() < 0.25:
        text += f":batch={rng.choice([2, 3])}"
    if rng.random() < 0.25:
        text += ":out=f32"
    for part in ("alpha", "beta", "bias"):
        text += f":{part}" if rng.random() < 0.4 else ""
    text += f":act={rng.choice(['relu', 'gelu', 'gelu_tanh', 'silu'])}" if rng.random() < 0.4 else ""
    try:
        return Gemm.parse(text)
    except InvalidGemm:
        return None


CASES = [*named_cases(), *random_cases()] if GPUS else list(named_cases())
Builds = dict[tuple[Gemm, Config], "Future[Binary]"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with Workbench(GPUS[0], MemoryStore(), lock_dir=tmp_path_factory.mktemp("locks"), processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> Builds:
    """Every case's build, all begun at once."""
    return {(gemm, config): bench.build(gemm, config) for gemm, config in CASES}


@pytest.mark.parametrize(("gemm", "config"), CASES, ids=[str(gemm) for gemm, _ in CASES])
def test_kernel_computes_the_problem(bench: Workbench, builds: Builds, gemm: Gemm, config: Config) -> None:
    binary = builds[gemm, config].result()
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
