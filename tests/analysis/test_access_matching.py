"""Compiled accesses matched with written ones: on the ladder, whose lower rungs it changes most, and on kernels that
spill."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest

from tests.analysis import handmade
from tests.analysis.memory_accesses import memory_of_program
from tirgemm.analysis.match.loops import kind_of
from tirgemm.analysis.memory_traffic import KernelAnalysis, analyse
from tirgemm.analysis.sass.program import disassemble
from tirgemm.config import Config
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.driver.nvrtc import compile_source

_H200 = named_device("sm_90a")
_SQUARE = Gemm.parse("4096x4096x4096:f32:nn")


@lru_cache(maxsize=32)
def rung(name: str) -> tuple[KernelAnalysis, bytes]:
    return built("simt", _SQUARE, ladder.config(name, _SQUARE, _H200))


def built(family: str, gemm: Gemm, config: Config) -> tuple[KernelAnalysis, bytes]:
    program = FAMILIES[family].instantiate(gemm, config, _H200)
    host, module, source = cuda.lower_all(program, "sm_90a")
    cubin = compile_source(source, "sm_90a").data
    return analyse(module, cuda.checked_launch(program, host), gemm, _H200, cubin)[-1], cubin


@pytest.mark.parametrize("name", ["naive", "shared_block", "inner_product", "tile_1d", "tile_2d", "float4", "zorder"])
def test_every_instruction_is_one_accesss(name: str) -> None:
    """Merged, repeated, removed or as written: all memory instructions are accounted for, and none twice."""
    analysis, cubin = rung(name)
    assert [str(u) for u in analysis.unknown] == []
    (function,) = disassemble(cubin)
    there = Counter(i.name for i in function.memory if kind_of(i) is not None)
    told = Counter({code.name: 0 for access in analysis.accesses for code in access.code})
    for access in analysis.accesses:
        told.update({code.name: code.count for code in access.code})
    assert told == there


@pytest.mark.parametrize(
    ("family", "text"),
    [("mma", "256x256x256:f16:nt:bias"), ("mma", "4096x4096x40:f16:tt"), ("wmma", "512x512x512:f16:nt:bias")],
)
def test_instructions_that_may_be_of_several_accesses_are_told_once(family: str, text: str) -> None:
    """Each side of a copy has all of them."""
    gemm = Gemm.parse(text)
    analysis, cubin = built(family, gemm, FAMILIES[family].default(gemm, _H200, "sustained"))
    (function,) = disassemble(cubin)
    there = Counter(i.name for i in function.memory if kind_of(i) is not None)
    for shared in (False, True):
        told: Counter[str] = Counter()
        for access in (a for a in analysis.accesses if (a.space == "shared") == shared and a.op != "matrix"):
            told.update({code.name: code.count for code in access.code})
        assert told
        assert {name: there[name] for name in told} == told


@pytest.mark.parametrize(("layout", "k", "stages"), [("nt", 128, 3), ("tn", 130, 4), ("nt", 192, 4)])
def test_a_main_loop_that_no_longer_copies_is_not_taken_for_the_prologue_s(layout: str, k: int, stages: int) -> None:
    """So few steps of k that all tiles are copied beforehand: the loop loads fragments alone, as a loop before it
    does."""
    gemm = Gemm.parse(f"512x512x{k}:f16:{layout}")
    cut = {"tile_m": 64, "tile_n": 32, "tile_k": 64, "warps_m": 2, "warps_n": 2, "stages": stages}
    config = FAMILIES["mma"].default(gemm, _H200, "sustained").with_(**cut)
    analysis, _ = built("mma", gemm, config)
    loads = [access for access in analysis.accesses if access.op == "ldmatrix"]
    assert analysis.unknown == ()
    assert {access.fate for access in loads} == {"as written"}
    # Per warp of a block 3 fragments of A and B for each step of 16, and those of the step after the last.
    warps = 512 // 64 * (512 // 32) * 4
    assert sum(access.requests for access in loads) == warps * 3 * (-(-k // 64) * 4 + 1)


def test_scalar_loads_that_became_vectors_are_counted_as_vectors() -> None:
    analysis, _ = rung("tile_2d")
    for access in (a for a in analysis.accesses if a.space == "shared" and a.op == "load"):
        assert access.width == 16
        assert access.copies == 512
        assert access.fate == "merged to 16 bytes, 448 of 512 equal loads removed"
        # 16 instructions a warp and step of 8: 1024 blocks of 8 warps, 512 steps.
        assert access.requests == 16 * 1024 * 8 * 512


def test_what_is_loaded_twice_is_counted_twice() -> None:
    """ptxas, short of registers, loads single elements of a vector again."""
    analysis, cubin = rung("tile_1d")
    (access,) = [a for a in analysis.accesses if a.buffer.startswith("a_tile") and a.op == "load"]
    counts = {code.name: code.count for code in access.code}
    (function,) = disassemble(cubin)
    steps, warps = 512, 64 * 64 * 16
    assert sum(counts.values()) * steps * warps == access.requests
    assert "loaded again" in access.fate
    assert set(counts) == {"LDS", "LDS.128"}
    assert counts["LDS"] < sum(i.name == "LDS" for i in function.memory)


def test_the_sgemm_articles_store_conflicts_are_the_transposed_tiles() -> None:
    """134,217,728 loads and 16,777,216 conflicts in stores of 4096^3: its float4 kernel; BM + 4 removes them."""
    float4, padded = rung("float4")[0], rung("pad_store")[0]
    assert float4.totals["shared_loads"].requests == padded.totals["shared_loads"].requests == 134_217_728
    assert (float4.totals["shared_stores"].conflicts, padded.totals["shared_stores"].conflicts) == (16_777_216, 0)
    assert all(a.operand == "a" for a in float4.accesses if a.space == "shared" and a.op == "store" and a.conflicts)


def test_coalescing_is_the_difference_between_the_first_rungs() -> None:
    naive, coalesced = rung("naive")[0], rung("coalesced")[0]
    assert naive.totals["global_loads"].requests == coalesced.totals["global_loads"].requests
    (slow,) = [a for a in naive.accesses if a.op == "load" and a.operand == "a"]
    (fast,) = [a for a in coalesced.accesses if a.op == "load" and a.operand == "b"]
    assert slow.sectors_per_request > 16
    assert fast.sectors_per_request == 4


def test_local_memory_is_named() -> None:
    """The machine code of a kernel that indexes an array of its own as it runs, under the IR of one that has none."""
    program = handmade.program("d[bx * 64 + tx] = a[bx * 64 + tx]")
    host, module, _ = cuda.lower_all(program, "sm_90a")
    launch = cuda.checked_launch(program, host)
    source = f"""
extern "C" __global__ void {launch.kernels[0].symbol}(const float* __restrict__ a, float* __restrict__ d) {{
    float mine[32];
    for (int i = 0; i < 32; i++) mine[(int)a[i] & 31] = a[i + 32];
    d[blockIdx.x * 64 + threadIdx.x] = mine[threadIdx.x & 31];
}}
"""
    (analysis,) = analyse(module, launch, _SQUARE, _H200, compile_source(source, "sm_90a").data)
    local = [u for u in analysis.unknown if u.name.split(".")[0] in ("LDL", "STL")]
    assert {u.name.split(".")[0] for u in local} == {"LDL", "STL"}
    assert all("local memory" in u.reason for u in local)


def test_loads_that_the_compiler_did_without_are_told_by_number_and_counted_in_that_proportion() -> None:
    """The second load has the first one's address, written otherwise."""
    body = (
        "d[bx * 64 + tx] = a[bx * 64 + tx]\n"
        "d[bx * 64 + tx + 4096] = a[bx * 64 + T.bitwise_xor(T.bitwise_xor(tx, 5), 5)]\n"
        "d[bx * 64 + tx + 8192] = a[bx * 64 + tx + 1024]"
    )
    (actual,) = memory_of_program(handmade.program(body), _SQUARE, _H200)
    loads = [access for access in actual.accesses if access.op == "load"]
    fate = "2 of 3 of 4 bytes are left in the code, and so many of the requests counted"
    assert {access.fate for access in loads} == {fate}
    # Two blocks of two warps with two loads each.
    assert sum(access.requests for access in loads) == 8


@pytest.mark.parametrize(("text", "requests"), [("64x64x64:f16:nt", 64), ("128x128x64:f16:nt", 256)])
def test_a_share_of_several_accesses_leaves_whole_requests_of_all_their_wavefronts(text: str, requests: int) -> None:
    """8 of 10 loads are left, of five accesses to each tile: 12.8 requests of each."""
    gemm = Gemm.parse(text)
    analysis, _ = built("mma", gemm, FAMILIES["mma"].default(gemm, _H200, "sustained"))
    for operand in "ab":
        mine = [access for access in analysis.accesses if (access.op, access.operand) == ("ldmatrix", operand)]
        assert {access.fate for access in mine} == {
            "8 of 10 of 16 bytes are left in the code, and so many of the requests counted"
        }
        assert sum(access.requests for access in mine) == requests
        assert {access.wavefronts_per_request for access in mine} == {4.0}


def test_equal_loads_under_conditions_of_their_own_are_counted_as_often_as_they_are_left() -> None:
    """n is odd: a bias is loaded beside each store of D, under the store's condition."""
    gemm = Gemm.parse("333x515x777:f16:tn:batch=3:bias:act=gelu:out=f32")
    cut = {"block_m": 64, "block_n": 32, "thread_m": 4, "thread_n": 4, "vector": 1}
    config = FAMILIES["simt"].default(gemm, _H200, "sustained").with_(**cut)
    analysis, _ = built("simt", gemm, config)
    bias, d = (next(a for a in analysis.accesses if (a.operand, a.space) == (name, "global")) for name in ("bias", "d"))
    assert [[code.count for code in access.code] for access in (bias, d)] == [[16], [16]]
    assert bias.fate == "16 of 32 equal loads removed"
    assert bias.requests == d.requests == 16884


def test_loads_whose_condition_never_holds_take_no_requests_from_the_others() -> None:
    """Of an unrolled loop over 100 of k the steps beyond are left out, and were never counted."""
    gemm = Gemm.parse("4096x1x100:f32:tn")
    analysis, _ = built("simt", gemm, FAMILIES["simt"].default(gemm, _H200, "sustained"))
    loads = [a for a in analysis.accesses if (a.operand, a.space, a.op) == ("a", "global", "load")]
    assert {a.fate for a in loads} == {"25 of 32 of 8 bytes are left in the code: the others never run"}
    assert sum(a.used_bytes for a in loads) == 4096 * 100 * 4
    assert sum(a.requests for a in loads) == 4096 * 100 * 4 // (32 * 8)
    assert all(a.bound for a in loads)


def test_of_a_box_of_tma_what_lies_outside_the_matrix_is_not_read() -> None:
    gemm = Gemm.parse("4096x4096x8:f16:nt")
    config = FAMILIES["wgmma"].default(gemm, _H200, "sustained").with_(tile_m=64, tile_n=32, swap=0)
    analysis, _ = built("wgmma", gemm, config)
    loads = [a for a in analysis.accesses if a.op == "bulk" and a.operand in ("a", "b") and a.space == "shared"]
    blocks = (4096 // 64) * (4096 // 32)
    assert {a.operand: a.used_bytes for a in loads} == {"a": blocks * 64 * 8 * 2, "b": blocks * 32 * 8 * 2}


def test_what_tma_writes_to_several_blocks_has_instructions_of_its_own() -> None:
    gemm = Gemm.parse("1000x1000x520:f16:nn:bias")
    config = FAMILIES["wgmma"].default(gemm, _H200, "sustained").with_(swap=0, cluster_m=2, cluster_n=1, tile_n=64)
    assert rejected(FAMILIES["wgmma"], gemm, config, _H200) is None
    analysis, cubin = built("wgmma", gemm, config)
    (function,) = disassemble(cubin)
    there = Counter(i.name for i in function.memory if i.name.startswith("UTMALDG"))
    told: Counter[tuple[str, str]] = Counter()
    for access in (a for a in analysis.accesses if a.detail.startswith("TMA load")):
        told.update({(access.operand, c.name): c.count for c in access.code})
    # Blocks of a cluster along m share the columns of B; A is loaded by two descriptors, one of them of its last rows.
    assert told == {(operand, n): there[n] for operand, n in (("a", "UTMALDG.2D"), ("b", "UTMALDG.2D.MULTICAST"))}
    loads = {a.detail.split(",")[0] for a in analysis.accesses if a.operand == "a" and a.op == "bulk"}
    assert loads == {"TMA load by a", "TMA load by a_edge"}
