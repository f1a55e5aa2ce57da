"""Arrays of registers become variables where nothing points into them, and the instructions stay what they were."""

from __future__ import annotations

from collections import Counter

import pytest

from tirgemm.analysis.sass.program import disassemble
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.register_arrays import with_scalars
from tirgemm.tuning.driver.nvrtc import Cubin, compile_source

_H200 = named_device("sm_90a")


@pytest.fixture
def as_tvm_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "with_scalars", lambda source: source)


def _source(family: str, text: str) -> str:
    gemm = Gemm.parse(text)
    config = FAMILIES[family].default(gemm, _H200, "sustained")
    return cuda.lower(FAMILIES[family].instantiate(gemm, config, _H200), _H200.arch)[1]


def _instructions(cubin: Cubin) -> list[str]:
    return [str(i) for function in disassemble(cubin.data) for i in function.instructions]


def _opcodes(cubin: Cubin) -> Counter[str]:
    return Counter(i.name for function in disassemble(cubin.data) for i in function.instructions)


@pytest.mark.parametrize("text", ["512x512x512:f16:nt", "256x512x512:f32:tn", "512x512x512:f16:nn:acc=f16"])
@pytest.mark.usefixtures("as_tvm_writes")
def test_the_machine_code_of_whole_tiles_is_the_same(text: str) -> None:
    written = _source("simt", text)
    split = with_scalars(written)
    assert "acc_local_ptr[" in written
    assert "acc_local_ptr[" not in split
    before, after = compile_source(written, _H200.arch), compile_source(split, _H200.arch)
    assert _instructions(before) == _instructions(after)
    assert before.resources == after.resources


@pytest.mark.parametrize(
    "text",
    [
        "77x96x72:f16:nt:bias:act=gelu",
        "1..300x95x71:bf16:nn:alpha:beta",
        "256x256x512:f16:nt:act=gelu",  # called lane by lane
    ],
)
@pytest.mark.usefixtures("as_tvm_writes")
def test_edge_tiles_have_the_same_instructions_in_some_order(text: str) -> None:
    written = _source("simt", text)
    before, after = compile_source(written, _H200.arch), compile_source(with_scalars(written), _H200.arch)
    assert _opcodes(before) == _opcodes(after)


@pytest.mark.usefixtures("as_tvm_writes")
def test_offsets_of_64_bits_cost_moves_at_most() -> None:
    written = _source("simt", "200x4000x4096:f16:nt:ldd=9000000")
    split = with_scalars(written)
    assert "acc_local_ptr[" not in split
    before, after = (_opcodes(compile_source(source, _H200.arch)) for source in (written, split))
    for moves in ("MOV", "NOP"):
        del before[moves], after[moves]
    assert before == after


def test_lowered_source_has_no_array_of_sums() -> None:
    assert "acc_local_ptr[" not in _source("simt", "64x64x64:f16:nt")
    assert "acc_local_ptr[" not in _source("simt", "256x256x512:f16:nt:act=gelu")


@pytest.mark.parametrize("family", ["wmma", "mma", "wgmma"])
@pytest.mark.usefixtures("as_tvm_writes")
def test_source_with_inline_assembly_stays_as_it_is(family: str) -> None:
    written = _source(family, "256x256x256:f16:nt")
    assert with_scalars(written) == written


@pytest.mark.parametrize(
    "use",
    [
        "  x[i] = 0.0f;",
        "  f(x);",
        "  *(float4*)(x + i) = y;",
        "  *(float4*)(x + 6) = y;",
        "  x[8] = 0.0f;",
        "  *(half4*)(x + 0) = y;",
        "  float* p = x + 2;",
        "  alignas(64) float x[8];",
    ],
)
def test_an_array_with_any_other_use_stays_one(use: str) -> None:
    source = f"  alignas(64) float x[8];\n  x[1] = 2.0f;\n{use}\n"
    assert with_scalars(source) == source


def test_vectors_are_taken_apart_and_put_together() -> None:
    source = "  alignas(64) half x[4];\n  *(half2*)(x + 2) = *(half2*)(p + 8);\n  half4 v = *(half4*)(x + 0);\n"
    assert with_scalars(source) == (
        "  half x_0_, x_1_, x_2_, x_3_;\n"
        "  { half2 whole_ = *(half2*)(p + 8); x_2_ = whole_.x; x_3_ = whole_.y; }\n"
        "  half4 v = make_half4(x_0_, x_1_, x_2_, x_3_);\n"
    )


def test_offsets_of_64_bits_are_indices_too() -> None:
    source = "  alignas(64) float x[4];\n  x[(int64_t)1] = 2.0f;\n  float2 v = *(float2*)(x + (int64_t)2);\n"
    assert with_scalars(source) == (
        "  float x_0_, x_1_, x_2_, x_3_;\n  x_1_ = 2.0f;\n  float2 v = make_float2(x_2_, x_3_);\n"
    )


@pytest.mark.parametrize("pragma", ["", "  #pragma unroll\n"])
def test_a_loop_over_lanes_is_written_out(pragma: str) -> None:
    loop = "  for (int l = 0; l < 2; ++l) {\n    d[(p + l)] = f(x[(l + 2)] + b[l]);\n  }\n"
    assert with_scalars(f"  alignas(64) float x[4];\n{pragma}{loop}") == (
        "  float x_0_, x_1_, x_2_, x_3_;\n  d[(p + 0)] = f(x_2_ + b[0]);\n  d[(p + 1)] = f(x_3_ + b[1]);\n"
    )


@pytest.mark.parametrize(
    "loop",
    [
        "  for (int l = 0; l < 9; ++l) {\n    d[l] = x[l];\n  }\n",
        "  for (int l = 0; l < n; ++l) {\n    d[l] = x[l];\n  }\n",
        "  for (int l = 0; l < 2; ++l) {\n    d[l] = x[(l * 2)];\n  }\n",
        "  for (int l = 0; l < 2; ++l) {\n    d[l] = c[l];\n  }\n  x[i] = 0.0f;\n",
    ],
)
def test_any_other_loop_stays_one(loop: str) -> None:
    source = f"  alignas(64) float x[4];\n{loop}"
    assert with_scalars(source) == source
