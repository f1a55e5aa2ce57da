"""Rows of invariant kernels on a Hopper GPU: one signature over m, configs, loads and ways to add; a split chosen by m
fails."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tirgemm.artifact import Trust, load
from tirgemm.config import Config, Value
from tirgemm.detect import devices
from tirgemm.families import rejected, supporting
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.verify.invariance import invariance_report
from tirgemm.tuning.workbench import Workbench

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU")]

SIZES = ("1", "7", "64", "129", "500", "2048", "1..8192")
# One part of k, several parts, epilogues and alignments of all kinds, simt.
PROBLEMS = (
    "4096x4096:f16:nt",
    "576x7168:bf16:nt",
    "2112x7168:f16:nn:alpha:beta:bias:act=gelu",
    "1000x7232:f16:tt:out=f32",
    "577x523:f16:nt:align=2:act=silu",
    "256x192:f16:nt:acc=f16",
    "96x4096:f16:nt:acc=f16:batch=3",
    "300x777:f32:nn:bias",
    # Products that a compiler might contract with an addition for some rows alone.
    "201x200:bf16:tt:align=8:alpha:bias:act=relu",
    "264x200:f16:nt:beta",
    "576x200:f16:nt:bias:act=gelu_tanh",
    "201x200:f32:nt:alpha:bias",
)
DRAWN = 3
Built = list[tuple[Gemm, Config, "Future[Binary]"]]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with Workbench(GPUS[0], MemoryStore(), lock_dir=tmp_path_factory.mktemp("locks"), processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def backend() -> Any:
    from tirgemm.tuning.driver.cuda import Gpu
    from tirgemm.tuning.verify.cuda import CudaBackend

    return CudaBackend(Gpu(GPUS[0]))


def configs(gemm: Gemm) -> list[Config]:
    """The default, and random ones that the rules accept: some of all, and one of each way to add parts of k."""
    (family,), rng = supporting(gemm, GPUS[0]), random.Random(str(gemm))
    space = family.space(gemm, GPUS[0])

    def valid(**fixed: Value) -> Iterator[Config]:
        drawn = (space.at(rng.randrange(space.size)).with_(**fixed) for _ in range(20_000))
        return (config for config in drawn if rejected(family, gemm, config, GPUS[0]) is None)

    ways = next((knob.choices for knob in space.knobs if knob.name == "reduction" and len(knob.choices) > 1), ())
    return [
        family.default(gemm, GPUS[0], "sustained"),
        *(config for _, config in zip(range(DRAWN), valid(), strict=False)),
        *(config for way in ways for config in itertools.islice(valid(reduction=way), 1)),
    ]


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> dict[str, Built]:
    """Every kernel, all begun at once."""
    return {
        problem: [
            (gemm, config, bench.build(gemm, config))
            for gemm in (Gemm.parse(f"{m}x{problem}:invariant") for m in SIZES)
            for config in configs(gemm)
        ]
        for problem in PROBLEMS
    }


def function(bench: Workbench, gemm: Gemm, config: Config, binary: Binary) -> Callable[..., object]:
    function: Callable[..., object] = load(bench.package(gemm, config, binary), trust=Trust.of(bench.signer.public)).raw
    return function


@pytest.mark.parametrize("problem", PROBLEMS)
def test_kernels_of_every_m_and_config_give_a_row_the_same_bits(
    bench: Workbench, builds: dict[str, Built], backend: Any, problem: str
) -> None:
    signatures: dict[str, list[str]] = {}
    for gemm, config, build in builds[problem]:
        actual = invariance_report(backend, gemm, function(bench, gemm, config, build.result()), seed=3)
        assert actual["passed"], (gemm, config, actual)
        signatures.setdefault(actual["signature"], []).append(f"{gemm} {config}")
    assert len(signatures) == 1, {name[:8]: kernels[:3] for name, kernels in signatures.items()}


def test_a_split_chosen_by_m_fails_and_has_another_signature(bench: Workbench, backend: Any) -> None:
    free = Gemm.parse("1..2048x4096x4096:f16:nt")
    (family, *_) = (able for able in supporting(free, GPUS[0]) if able.name == "wgmma")
    whole = family.default(free, GPUS[0], "sustained").with_(split=1, reduction="cluster")
    few = free.with_(m=16)
    cut = family.default(few, GPUS[0], "sustained").with_(split=2, reduction="kernel", epilogue="direct", swap=0)
    cut = cut.with_(tile_m=64, tile_n=64, cluster_m=1, cluster_n=1, schedule="cooperative", resident=1, stages=4)
    one, two = (
        function(bench, gemm, config, bench.build(gemm, config).result())
        for gemm, config in ((free, whole), (few, cut))
    )

    def by_m(a: Any, *arguments: Any) -> None:
        (two if a.shape[0] == few.m else one)(a, *arguments)

    gemm = Gemm.parse("16..17x4096x4096:f16:nt:invariant")
    sound = invariance_report(backend, gemm, one, seed=3)
    assert sound["passed"], sound
    assert not invariance_report(backend, gemm, by_m, seed=3)["passed"]
    assert invariance_report(backend, few, two, seed=3)["signature"] != sound["signature"]
