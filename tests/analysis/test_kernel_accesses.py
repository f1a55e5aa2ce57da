"""What the analysis counts of kernels whose conflicts and sectors are known, and what it says of what it cannot
count."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.analysis import handmade
from tests.analysis.memory_accesses import memory_of, memory_of_program
from tirgemm.analysis.memory_traffic import AccessReport, KernelAnalysis, analyse
from tirgemm.errors import AnalysisFailed, InvalidRequest, Unsupported
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.explain import chosen, rolled_memory_of

_H200 = named_device("sm_90a")
_GEMM = Gemm.parse("64x64x64:f32:nn")
_SYNC = 'T.evaluate(T.tvm_storage_sync("shared"))'


def analysed(body: str, *, compiled: bool = False, **kernel: Any) -> KernelAnalysis:
    (actual,) = memory_of_program(handmade.program(body, **kernel), _GEMM, _H200, compiled=compiled)
    return actual


def shared(analysis: KernelAnalysis, op: str) -> AccessReport:
    (actual,) = [a for a in analysis.accesses if a.space == "shared" and a.op == op]
    return actual


# Two blocks of two warps: four requests.
@pytest.mark.parametrize(
    ("index", "wavefronts", "conflicts"),
    [
        ("tx", 1, 0),
        ("tx * 2", 2, 1),
        ("tx * 4", 4, 3),
        ("tx % 32 * 32", 32, 31),
        ("tx % 32 * 33", 1, 0),
        ("tx // 32", 1, 0),
        ("tx % 32 // 8 * 32", 4, 3),
        ("(tx % 32) * 4 + (tx % 32) // 8", 1, 0),
    ],
)
def test_planted_conflicts_of_loads_are_counted(index: str, wavefronts: int, conflicts: int) -> None:
    report = shared(analysed(f"s[tx] = a[tx]\n{_SYNC}\nd[bx * 64 + tx] = s[{index}]"), "load")
    assert (report.requests, report.wavefronts, report.conflicts) == (4, 4 * wavefronts, 4 * conflicts)


@pytest.mark.parametrize(
    ("store", "width", "wavefronts", "fewest"),
    [
        ("s[tx * 2] = a[tx]", 4, 2, 1),
        ("s[tx % 32 * 32 + tx // 32] = a[tx]", 4, 32, 1),
        ("for i in T.vectorized(4):\n    s[tx * 4 + i] = a[tx * 4 + i]", 16, 4, 4),
        ("for i in T.vectorized(4):\n    s[tx * 8 + i] = a[tx * 4 + i]", 16, 8, 4),
        ("for i in T.vectorized(2):\n    s[tx * 2 + i] = a[tx * 2 + i]", 8, 2, 2),
        ("for i in T.vectorized(2):\n    s[tx * 4 + i] = a[tx * 2 + i]", 8, 4, 2),
    ],
)
def test_planted_conflicts_of_stores_are_counted(store: str, width: int, wavefronts: int, fewest: int) -> None:
    report = shared(analysed(f"{store}\n{_SYNC}\nd[tx] = s[0]"), "store")
    assert (report.width, report.requests) == (width, 4)
    assert (report.wavefronts, report.fewest_wavefronts) == (4 * wavefronts, 4 * fewest)


def test_a_vector_with_gaps_is_stored_element_by_element() -> None:
    report = shared(
        analysed(f"for i in T.vectorized(4):\n    s[tx + i * 64] = a[tx * 4 + i]\n{_SYNC}\nd[tx] = s[0]"), "store"
    )
    assert (report.width, report.copies, report.requests, report.conflicts) == (4, 4, 16, 0)


@pytest.mark.parametrize(
    ("index", "sectors", "efficiency", "aligned"),
    [
        ("bx * 64 + tx", 4, 1.0, 128),
        ("tx * 2", 8, 0.5, 128),
        ("tx * 8", 32, 0.125, 128),
        ("bx * 64 + tx + 1", 5, 0.8, 4),
        ("bx * 64 + tx + 8", 4, 1.0, 32),
        ("0", 1, 0.125, 128),
    ],
)
def test_sectors_of_global_loads_are_counted(index: str, sectors: int, efficiency: float, aligned: int) -> None:
    (report,) = [a for a in analysed(f"d[bx * 64 + tx] = a[{index}]").accesses if a.op == "load"]
    assert (report.requests, report.sectors) == (4, 4 * sectors)
    assert report.efficiency == pytest.approx(efficiency)
    assert (report.operand, report.aligned_bytes) == ("a", aligned)


def test_loops_edges_and_empty_warps_count_as_they_run() -> None:
    """The second warp of the last block has no lane inside, and of the one before eight: 8 turns of 3 + 1 requests."""
    body = (
        "for i in range(8):\n    if bx * 64 + tx < 72:\n        d[bx * 64 + tx + i * 128] = a[bx * 64 + tx + i * 128]"
    )
    analysis = analysed(body)
    assert [(a.op, a.requests, a.lanes) for a in analysis.accesses] == [("load", 24, 576), ("store", 24, 576)]
    assert [a.sectors for a in analysis.accesses] == [8 * 9] * 2
    assert [(a.loops, a.trips) for a in analysis.accesses] == [(("i",), (8,))] * 2


@pytest.mark.parametrize("m", [45, 60])
def test_a_repack_of_a_range_reads_every_element_once(m: int) -> None:
    """TVM divides by what depends on m with Lets, in which the conditions of the edges are."""
    gemm, device = Gemm.parse("1..60x67x31:f16:tn"), named_device("sm_80")
    config = FAMILIES["mma"].default(gemm, device, "sustained")
    repack = next(k for k in memory_of(gemm, config, device, compiled=False, m=m) if "repack_a" in k.symbol)
    assert not repack.unknown
    loads = [a for a in repack.accesses if (a.op, a.operand) == ("load", "a")]
    assert sum(a.lanes for a in loads) == m * 31


def test_a_register_that_counts_tiles_is_followed() -> None:
    """Blocks take turns at 5 tiles of 64, with a register that says which."""
    body = (
        'tile = T.sblock_alloc_buffer((1,), "int32", scope="local")\n'
        "tile[0] = bx\nwhile tile[0] < 5:\n    d[tile[0] * 64 + tx] = a[tile[0] * 64 + tx]\n    tile[0] = tile[0] + 2"
    )
    analysis = analysed(body)
    assert not analysis.unknown
    assert [(a.op, a.requests, a.sectors) for a in analysis.accesses] == [("load", 10, 40), ("store", 10, 40)]


def test_what_the_compiler_merged_is_counted_as_it_runs() -> None:
    body = f"s[tx * 4] = a[tx]\n{_SYNC}\nd[bx * 64 + tx] = s[tx * 4] + s[tx * 4 + 1] + s[tx * 4 + 2] + s[tx * 4 + 3]"
    written, compiled = (shared(analysed(body, compiled=c), "load") for c in (False, True))
    assert (written.width, written.copies, written.requests, written.conflicts, written.fate) == (4, 4, 16, 48, "")
    assert (compiled.width, compiled.requests, compiled.conflicts) == (16, 4, 0)
    assert compiled.fate == "merged to 16 bytes"
    assert [(c.name, c.count) for c in compiled.code] == [("LDS.128", 1)]


def test_equal_loads_count_once_when_compiled() -> None:
    body = f"s[tx * 2] = a[tx]\n{_SYNC}\nd[bx * 64 + tx] = s[tx * 2] * s[tx * 2]"
    written, compiled = (shared(analysed(body, compiled=c), "load") for c in (False, True))
    assert (written.requests, compiled.requests) == (8, 4)
    assert "1 of 2 equal loads removed" in compiled.fate


def test_loads_of_which_a_part_is_not_used_are_narrowed() -> None:
    body = (
        'r = T.sblock_alloc_buffer((4,), "float32", scope="local")\n'
        "for i in T.vectorized(4):\n    r[i] = a[bx * 256 + tx * 4 + i]\nd[bx * 64 + tx] = r[0] + r[1]"
    )
    (report,) = [a for a in analysed(body, compiled=True).accesses if a.op == "load"]
    assert report.fate == "1 of 1 narrowed to 8 bytes: the rest is not used"
    assert [c.name for c in report.code] == ["LDG.E.64.CONSTANT"]
    assert (report.requests, report.unknown) == (4, "")


def test_reports_say_whether_machine_code_was_read() -> None:
    body = "d[bx * 64 + tx] = a[bx * 64 + tx]"
    assert not analysed(body).compiled
    compiled = analysed(body, compiled=True)
    assert compiled.compiled
    assert [a.fate for a in compiled.accesses] == ["as written"] * 2
    assert json.loads(json.dumps(compiled.to_json()))["totals"]["global_loads"]["sectors"] == 16


def test_the_example_shows_lanes_phases_and_banks() -> None:
    example = shared(analysed(f"s[tx * 2] = a[tx]\n{_SYNC}\nd[tx] = s[0]"), "store").example
    assert example is not None
    assert example.addresses == tuple(range(0, 256, 8))
    ((lanes, banks, passes),) = example.phases
    assert (len(lanes), passes) == (32, 2)
    assert banks[1] == banks[17] == (2,)


def test_data_dependent_addresses_are_named() -> None:
    analysis = analysed("d[bx * 64 + tx] = d[a[bx * 64 + tx]]", dtype="int32")
    gather = [a for a in analysis.accesses if a.unknown]
    assert [(a.operand, a.op, a.requests) for a in gather] == [("d", "load", 0)]
    assert "a value read from a" in gather[0].unknown
    assert any("load of d" in str(u) for u in analysis.unknown)


def test_data_dependent_conditions_are_named() -> None:
    analysis = analysed("if a[tx] > 0:\n    d[tx] = 1", dtype="int32")
    assert any("store of d" in str(u) and "a condition depends on" in str(u) for u in analysis.unknown)


def test_unknown_instructions_are_named() -> None:
    analysis = analysed('d[tx] = a[tx]\nT.evaluate(T.call_extern("int32", "scatter_them", T.address_of(d[tx])))')
    assert [u.name for u in analysis.unknown] == ["scatter_them"]


def test_machine_code_without_an_access_and_the_reverse_are_named() -> None:
    """The IR of one kernel with the machine code of another."""
    one = handmade.program(f"s[tx] = a[tx]\n{_SYNC}\nd[tx] = s[tx]")
    other = handmade.program("for i in T.vectorized(2):\n    d[tx * 2 + i] = a[tx * 2 + i]")
    _, source = cuda.lower(other, "sm_90a")
    host, module, _ = cuda.lower_all(one, "sm_90a")
    from tirgemm.tuning.driver.nvrtc import compile_source

    cubin = compile_source(source, "sm_90a").data
    (analysis,) = analyse(module, cuda.checked_launch(one, host), _GEMM, _H200, cubin)
    said = "\n".join(map(str, analysis.unknown))
    assert "store of a: no store of shared" in said
    assert "LDG.E.64.CONSTANT: 1 of these match no access of that width" in said


def test_bad_requests_are_refused_by_name() -> None:
    config = FAMILIES["simt"].default(_GEMM, _H200, "sustained")
    with pytest.raises(Unsupported, match="cpu"):
        rolled_memory_of(_GEMM, config, named_device("sm_90a").with_(kind="cpu"))
    with pytest.raises(Unsupported, match=r"wgmma does not write 64x64x64:f32:nn"):
        rolled_memory_of(_GEMM, config.__class__("wgmma", ()), _H200)
    program = FAMILIES["simt"].instantiate(_GEMM, config, _H200)
    host, module, _ = cuda.lower_all(program, "sm_90a")
    launch = cuda.checked_launch(program, host)
    with pytest.raises(InvalidRequest, match="m is 65"):
        analyse(module, launch, _GEMM, _H200, m=65)
    with pytest.raises(InvalidRequest, match="sm_61"):
        analyse(module, launch, _GEMM, _H200.with_(arch="sm_61"))
    with pytest.raises(AnalysisFailed, match="cubin"):
        analyse(module, launch, _GEMM, _H200, b"not a cubin")


def test_a_load_that_the_compiler_moved_below_a_condition_is_a_bound() -> None:
    """The rows of sums that lie outside D are not read: the load is written before the condition of its store."""

    def loads(text: str) -> list[AccessReport]:
        gemm = Gemm.parse(text)
        tile = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "warps_m": 2, "warps_n": 2, "stages": 4}
        config = FAMILIES["mma"].default(gemm, _H200, "sustained").with_(**tile, epilogue="staged", split=1, raster=1)
        (kernel, *_) = memory_of(gemm, config, _H200)
        return [a for a in kernel.accesses if a.space == "shared" and a.op == "load"]

    uneven, even = loads("1000x1000x1000:bf16:tt"), loads("1024x1024x1024:bf16:tt")
    assert uneven
    assert all(a.bound and "at most" in a.fate for a in uneven)
    assert even
    assert not any(a.bound for a in even)


def test_a_load_that_the_compiler_moved_behind_a_jump_is_a_bound() -> None:
    """In tiles of 128 x 64 the compiler jumps past some of the loads and gives others predicates. The counters of an
    H200: 8,000 loads in 31,500 passes."""
    gemm = Gemm.parse("1000x1000x1000:bf16:tt")
    tile = {"tile_m": 128, "tile_n": 64, "tile_k": 64, "warps_m": 2, "warps_n": 2, "stages": 4, "registers": 2}
    config = FAMILIES["mma"].default(gemm, _H200, "sustained").with_(**tile, epilogue="staged", split=1, raster=16)
    (kernel,) = memory_of(gemm, config, _H200)
    loads = [a for a in kernel.accesses if a.space == "shared" and a.op == "load"]
    assert loads
    assert all(a.bound and "at most" in a.fate for a in loads)
    requests, wavefronts = sum(a.requests for a in loads), sum(a.wavefronts for a in loads)
    assert (requests, wavefronts) == (8192, 32768)
    assert not any(a.bound for a in kernel.accesses if a not in loads)


def test_stores_that_never_run_are_not_counted_off_the_others() -> None:
    """Zeros of cp.async behind an edge: 10 of 32 stores are never needed, and all requests are of the others."""
    gemm = Gemm.parse("1000x1000x1000:f32:nt")
    config = FAMILIES["simt"].default(gemm, _H200, "sustained").with_(pipeline="async3")
    (compiled,) = memory_of(gemm, config, _H200)
    zeros = [a for a in compiled.accesses if a.space == "shared" and a.op == "store" and a.detail == "zeros"]
    assert any("the others never run" in a.fate for a in zeros)
    # Counted on an H200.
    assert sum(a.requests for a in zeros) == 40192


@pytest.mark.timing
def test_a_kernel_takes_under_two_seconds() -> None:
    """Without TVM's import and the compiler; CPU time, as other tests may run."""
    gemm = Gemm.parse("4096x4096x4096:f32:nn")
    program = FAMILIES["simt"].instantiate(gemm, FAMILIES["simt"].default(gemm, _H200, "sustained"), _H200)
    host, module, source = cuda.lower_all(program, "sm_90a")
    from tirgemm.tuning.driver.nvrtc import compile_source

    cubin, launch = compile_source(source, "sm_90a").data, cuda.checked_launch(program, host)
    start = time.process_time()
    (analysis,) = analyse(module, launch, gemm, _H200, cubin)
    assert time.process_time() - start < 2
    assert not analysis.unknown


@pytest.mark.parametrize(("epilogue", "added"), [("beta", "c"), ("bias:act=silu", "bias")])
def test_a_tile_on_its_way_out_is_that_of_d_whatever_is_added_to_it(epilogue: str, added: str) -> None:
    gemm = Gemm.parse(f"66x64x256:f16:nt:out=f32:{epilogue}")
    config = chosen(gemm, _H200, "wgmma", "epilogue=tma,tile_m=64,tile_n=8")
    (kernel,) = memory_of(gemm, config, _H200, compiled=False)
    assert {a.operand for a in kernel.accesses if a.space == "shared"} == {"a", "b", "d"}
    assert {a.operand for a in kernel.accesses if a.space == "global"} == {added}
