"""Every code path of wgmma compiles for sm_90a: no spill, nothing serialised, resources as the rules predict.

The paths are few cases out of many random ones that together have every choice of every knob (of knobs with many
numbers: the ends, and each power of two that divides them), layout, dtype, accumulator, output, activation, addend,
alignment, batch and range, and every combination of knobs that chooses code.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.computed_once import computed_once
from tests.helpers.named_config import named_config
from tests.verification.covering_cases import classes
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.families.wgmma.planning.registers import registers
from tirgemm.gemm import ACTIVATIONS, LAYOUTS, Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch, TensorMap
from tirgemm.tuning.build import cuda
from tirgemm.tuning.driver.nvrtc import Cubin, compile_source
from verification.cases import Case, Feature, problem_features, random_cases
from verification.covering import build_cost, covering, paths

FAMILY = Wgmma()
H200 = named_device("sm_90a")
DRAWN = 240
MOST_BUILDS = 24
WARPGROUP = 128


@cache
def drawn() -> tuple[list[Case], list[Case]]:
    """Many cases, and the few of them that have all that the many have. It takes seconds: not at import, and once."""

    def draw() -> tuple[list[Case], list[Case]]:
        many = random_cases(FAMILY, H200, DRAWN, seed=3)
        of = classes(many)

        def features(case: Case) -> frozenset[Feature]:
            return of(case) | paths(case)

        return many, covering(many, features, build_cost)

    return computed_once("wgmma-cases", draw)


@cache
def built(case: Case) -> tuple[Launch, str, Cubin]:
    written = FAMILY.instantiate(case.gemm, case.config, H200)
    host, source = cuda.lower(written, H200.arch)
    launch = cuda.checked_launch(written, host)
    return launch, source, compile_source(source, H200.arch)


def test_few_builds_cover_every_path() -> None:
    many, cases = drawn()
    assert len(cases) <= MOST_BUILDS
    had = {feature for case in cases for feature in problem_features(case.gemm)}
    assert {value for name, value in had if name == "act"} == set(ACTIVATIONS)
    assert {value for name, value in had if name == "layout, dtype"} >= {
        (t, d) for t in LAYOUTS for d in ("f16", "bf16")
    }
    assert {value for name, value in had if name == "acc, out"} >= {
        (a, o) for a in ("f16", "f32") for o in ("f16", "f32")
    }
    assert {value for name, value in had if name == "alpha, beta, bias"} >= {(False,) * 3, (True,) * 3}
    offered = {knob.name: set(knob.choices) for case in many for knob in FAMILY.space(case.gemm, H200).knobs}
    for name in offered:
        taken = {case.config[name] for case in cases}
        # Words choose code, so that each is built; of sizes the ends are, at least.
        words = {value for case in many if isinstance(value := case.config[name], str)}
        assert words <= taken, name
        numbers = [int(case.config[name]) for case in many if not words]
        assert {min(numbers), max(numbers)} <= taken if numbers else words, name


@pytest.mark.parametrize("number", range(MOST_BUILDS))
def test_path_compiles_without_spills_or_serialised_wgmmas(number: int) -> None:
    _, cases = drawn()
    if number >= len(cases):
        pytest.skip(f"{len(cases)} builds cover every path")
    case = cases[number]
    launch, source, cubin = built(case)
    cut = plan(case.gemm, case.config, H200.units)
    assert not cubin.serialised, f"{case}: {cubin.log}"
    assert set(cubin.resources) == {kernel.symbol for kernel in launch.kernels}
    for symbol, resources in cubin.resources.items():
        assert resources.spill_bytes == 0, f"{symbol} of {case.config}"
        assert resources.stack_bytes == 0
    kernel = cubin.resources["wgmma_gemm_kernel"]
    # The launch's dynamic shared memory starts where TMA's and wgmma's swizzles do: nothing static lies before it.
    assert kernel.shared_bytes == 0
    main = next(kernel for kernel in launch.kernels if kernel.symbol == "wgmma_gemm_kernel")
    assert main.shared_bytes == cut.memory.nbytes <= H200.limits.shared_per_block
    assert kernel.registers * cut.warpgroups.threads <= H200.limits.registers_per_sm
    # setmaxnreg deals out what the launch has been given.
    dealt = registers(cut)
    given = WARPGROUP * (dealt.producer + cut.warpgroups.consumers * dealt.consumer)
    assert given <= kernel.registers * cut.warpgroups.threads
    moved = (f"dec_sync_aligned_u32_{dealt.producer}", f"inc_sync_aligned_u32_{dealt.consumer}")
    assert all(f"setmaxnreg_{word}();" in source for word in moved)
    stored = ["d"] if cut.epilogue == "tma" and not cut.cluster.writes_partials else []
    maps = sorted(param.name for param in main.params if isinstance(param, TensorMap))
    assert maps[-len(stored) :] == stored if stored else "d" not in maps


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        (
            "1949..2501x576x520:f16:tt:lda=2504:alpha:bias",
            "tile_m=64 tile_n=208 stages=4 split=2 epilogue=direct order=n",
        ),
        ("512x4096x4096:f16:nt", "tile_m=192 tile_n=192 stages=4 split=2 epilogue=direct"),
        (
            "700x300x5001:f16:tn:lda=702:ldb=302:align=4",
            "tile_m=64 tile_n=176 stages=3 resident=2 swap=1 split=8 epilogue=staged",
        ),
        ("512x512x32768:f16:nt", "tile_m=256 tile_n=144 stages=4 split=16 reduction=kernel epilogue=direct"),
        ("4096x1000x4096:f16:nt:bias", "tile_m=128 tile_n=160 stages=3 schedule=pingpong epilogue=staged"),
    ],
)
def test_what_once_spilled_no_longer_does(text: str, knobs: str) -> None:
    gemm = Gemm.parse(text)
    _, _, cubin = built(Case(gemm, named_config(FAMILY, gemm, H200, knobs)))
    assert [resources.spill_bytes for resources in cubin.resources.values()] == [0] * len(cubin.resources)


def test_a_large_tile_spills_little_for_bias_and_gelu() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt:bias:act=gelu")
    _, _, cubin = built(Case(gemm, named_config(FAMILY, gemm, H200, "tile_m=256 tile_n=128 stages=4 cluster_n=2")))
    assert cubin.resources["wgmma_gemm_kernel"].spill_bytes <= 64, "once a tile, outside the loop over k"


def test_a_serialised_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    config = named_config(FAMILY, gemm, H200, "tile_m=128 tile_n=128 stages=4 epilogue=tma group=8")
    _, source, cubin = built(Case(gemm, config))
    assert not cubin.serialised
    # An accumulator is used while wgmmas write it.
    first = re.search(r"_wgmma_\w+_mma_async_\w+\((\w+\[0\]),", source[source.rindex('extern "C"') :])
    assert first is not None
    wait = "tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1();"
    place = source.rindex(wait)
    mutant = f"{source[:place]}{first[1]} += 1.0f; {source[place:]}"
    assert compile_source(mutant, H200.arch).serialised
    program = FAMILY.instantiate(gemm, config, H200)
    assert cuda.compile_program(program, H200).resources["serialised"] == 0
    monkeypatch.setattr(cuda, "compile_source", lambda _, arch: compile_source(mutant, arch))
    assert cuda.compile_program(program, H200).resources["serialised"] == 1
