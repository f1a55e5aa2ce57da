"""Kernels of mma on the emulator, from the very source that is compiled: right in any order of threads, and wrong where
a barrier or a wait is taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.families.emulation import emulate
from tirgemm.config import Config, Value
from tirgemm.families.mma import program as programs
from tirgemm.families.mma.space import tiling
from tirgemm.families.tensorcore import tile_blocks
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from tirgemm.tuning.build import cuda
from verification.emulator.operands import KernelCall

_DEVICE = named_device("sm_90a")
_KNOBS: dict[str, Value] = {
    "tile_m": 64,
    "tile_n": 64,
    "tile_k": 32,
    "warps_m": 2,
    "warps_n": 2,
    "stages": 3,
    "registers": 2,
    "resident": 1,
    "shared": "permuted",
    "copy": "line",
    "load": "copy",
    "epilogue": "direct",
    "split": 1,
    "raster": 1,
}
# Every layout of operands with every layout of shared memory; k ends inside a step, rows and columns inside a tile.
_CASES: dict[str, dict[str, Value]] = {
    "72x80x104:f16:nt": {"tile_k": 64, "copy": "half", "epilogue": "staged"},
    "72x80x136:f16:nn": {"shared": "padded", "stages": 4},
    # More steps than stages, of four 16 of k: copies run between the products of a step.
    "72x80x328:f16:nt": {"tile_k": 64, "epilogue": "staged"},
    "72x80x328:f16:nn": {"tile_k": 64, "stages": 4},
    "72x80x72:bf16:tn:out=f32": {"shared": "none", "registers": 1},
    "72x80x104:f16:tt:acc=f16": {"tile_n": 32, "warps_n": 1, "stages": 2, "epilogue": "staged"},
    "70x84x76:f16:nn:align=8:beta:bias": {"tile_k": 16, "registers": 1, "stages": 5, "epilogue": "staged"},
    "40x130x78:f16:nt:lda=80:ldb=82:batch=2": {"raster": 3, "shared": "padded"},
    "1..70x66x300:f16:tn:lda=72:ldb=66:alpha": {"split": 3, "stages": 2, "copy": "half"},
    "33x35x141:f16:nt": {"load": "repack", "split": 2, "shared": "none", "registers": 1, "epilogue": "staged"},
    "1..33x35x77:bf16:tn:act=silu": {"load": "repack"},
}


def _source(gemm: Gemm, **changes: Value) -> tuple[str, Launch]:
    # Small problems keep few SMs busy, which a rule would mind.
    config = Config("mma", tuple((_KNOBS | changes).items()))
    program = programs.program(tiling(gemm, config), config["registers"])
    host, source = cuda.lower(program, _DEVICE.arch)
    return source, cuda.checked_launch(program, host)


@pytest.mark.parametrize("text", _CASES)
def test_result_does_not_depend_on_the_order_of_threads(text: str, tmp_path: Path) -> None:
    gemm = Gemm.parse(text)
    source, launch = _source(gemm, **_CASES[text])
    case = KernelCall.random(gemm, gemm.m_max, seed=3)
    case.check(emulate(source, launch, case, tmp_path, orders=(0, 1, 6, 16, 19)))


@pytest.mark.parametrize("text", ["1..33x35x77:bf16:tn:act=silu", "1..70x66x300:f16:tn:lda=72:ldb=66:alpha"])
def test_result_is_the_same_with_offsets_of_64_bits(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a copy with aligned rows, or a split's parts, had more elements than int32 counts."""
    monkeypatch.setattr(tile_blocks, "_reach", lambda _: 2**31)
    gemm = Gemm.parse(text)
    source, launch = _source(gemm, **_CASES[text])
    assert "(int64_t)" in source
    case = KernelCall.random(gemm, gemm.m_max, seed=3)
    case.check(emulate(source, launch, case, tmp_path))


@pytest.mark.parametrize(("registers", "tile_k"), [(1, 32), (2, 32), (2, 64)])
@pytest.mark.parametrize(
    ("whole", "part"), [("__syncthreads();", ""), ("tirgemm_wait_1();", ""), ("tirgemm_wait_1();", "tirgemm_wait_2();")]
)
def test_emulator_sees_what_a_step_does_not_wait_for(
    whole: str, part: str, registers: int, tile_k: int, tmp_path: Path
) -> None:
    gemm = Gemm.parse("64x64x512:f16:nt")
    source, launch = _source(gemm, registers=registers, tile_k=tile_k)
    before, loop, after = source.rpartition(whole)
    assert loop, source
    helper = source[source.index("__forceinline__ __device__ void tirgemm_wait_1") :].partition("}\n")[0] + "}\n"
    weaker = helper.replace("wait_1", "wait_2").replace("wait_group 1", "wait_group 2")
    place = before.index(helper)
    mutant = before[:place] + weaker + before[place:] + part + after
    case = KernelCall.random(gemm, 64, seed=4)
    with pytest.raises(AssertionError):
        case.check(emulate(mutant, launch, case, tmp_path))


def test_emulator_sees_that_sums_are_staged_where_another_warp_still_reads(tmp_path: Path) -> None:
    gemm = Gemm.parse("64x64x512:f16:nt")
    source, launch = _source(gemm, epilogue="staged", registers=1)
    before, barrier, after = source.rpartition("__syncthreads();")
    assert barrier, source
    case = KernelCall.random(gemm, 64, seed=4)
    with pytest.raises(AssertionError):
        case.check(emulate(before + after, launch, case, tmp_path, orders=(16, 17)))
