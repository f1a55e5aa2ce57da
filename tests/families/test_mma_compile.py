"""Kernels of mma compile for every architecture without spilling, with the instructions and waits that they are meant
to have."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tirgemm.config import Config, Value
from tirgemm.families.mma import Mma
from tirgemm.families.mma.space import tiling
from tirgemm.families.mma.tile import registers_of
from tirgemm.gemm import LAYOUTS, Gemm
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.tuning.build import cuda
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.compile import compile_program
from tirgemm.workload import index_dtype

_FAMILY = Mma()
_SHARED = ("none", "padded", "permuted")
# How operands lie -> the width in bytes of their copies, and the knob that says so.
_LOADS = {"": 16, ":align=8": 8, ":align=4": 4, ":align=2": 16}


def _cases() -> list[tuple[str, str, str]]:
    """Every layout of operands with every layout of shared memory, and with every way to load; architectures in
    turn."""
    archs = tuple(ARCHITECTURES)
    actual = []
    for number, (layout, shared) in enumerate(product(LAYOUTS, _SHARED)):
        alignment = tuple(_LOADS)[(number + number // 4) % 4]
        # Rows of A are no whole copies where they run along an m that is not known.
        m, leading = ("1..900", ":lda=1104:ldb=1104") if number % 2 and layout[0] == "n" else ("1000", "")
        text = f"{m}x1048x1096:{'bf16' if number % 3 == 0 else 'f16'}:{layout}{leading}{alignment}"
        actual.append((text, shared, archs[number % 4]))
    return actual


def _compiled(gemm: Gemm, arch: str, **changes: Value) -> tuple[Config, Binary]:
    device = named_device(arch)
    config = _FAMILY.default(gemm, device, "sustained").with_(**changes)
    return config, compile_program(_FAMILY.instantiate(gemm, config, device), device)


def _source(gemm: Gemm, arch: str, **changes: Value) -> str:
    """The source that NVRTC would get: for tests of what is in it, beside which others compile its like."""
    device = named_device(arch)
    config = _FAMILY.default(gemm, device, "sustained").with_(**changes)
    program = _FAMILY.instantiate(gemm, config, device)
    host, source = cuda.lower(program, arch)
    cuda.checked_launch(program, host)
    return source


@pytest.mark.parametrize(("text", "shared", "arch"), _cases())
def test_every_layout_and_load_compiles_without_a_spill(text: str, shared: str, arch: str) -> None:
    gemm = Gemm.parse(text)
    load = "repack" if gemm.align == 2 else "copy"
    config, binary = _compiled(gemm, arch, shared=shared, load=load)
    assert (binary.resources["spill_bytes"], binary.resources["stack_bytes"]) == (0, 0), config
    assert binary.resources["shared_bytes"] == tiling(gemm, config).shared_bytes
    source = binary.sources["kernel.cu"]
    width = _LOADS[f":align={gemm.align}" if gemm.align < 16 else ""]
    assert set(re.findall(r"tirgemm_cp_async_(\d+)", source)) == {str(width)}
    # k-contiguous operands are read as they lie, the others turned.
    plain, turned = len(re.findall(r"ldmatrix_x4\(\(&", source)), len(re.findall(r"ldmatrix_x4_trans\(\(&", source))
    assert (plain > 0) == (not gemm.trans_a or gemm.trans_b)
    assert (turned > 0) == (gemm.trans_a or not gemm.trans_b)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_the_largest_tile_stays_within_a_threads_registers(arch: str, acc: str) -> None:
    gemm = Gemm.parse(f"4096x4096x4096:f16:nt:acc={acc}")
    tile: dict[str, Value] = {"tile_m": 128, "tile_n": 256, "warps_m": 2, "warps_n": 4, "stages": 3, "registers": 2}
    config, binary = _compiled(gemm, arch, tile_k=32, **tile)
    assert binary.resources["spill_bytes"] == 0
    assert binary.resources["registers"] <= 255
    assert registers_of(tiling(gemm, config), 2) <= 255


def test_a_step_has_one_barrier_and_the_fewest_loads_of_fragments() -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    knobs: dict[str, Value] = {"tile_m": 128, "tile_n": 256, "tile_k": 32, "warps_m": 2, "warps_n": 4, "stages": 4}
    source = _source(gemm, "sm_90a", **knobs)
    loop = source[source.index("< 128; ++") :]
    loop = loop[: loop.index("\n  }\n")]
    assert loop.count("__syncthreads();") == loop.count("tirgemm_wait_2();") == loop.count("tirgemm_commit();") == 1
    # Four of A and four of B for each 16 of k.
    assert len(re.findall(r"< 4; \+\+\w+\) \{\n\s+tirgemm_ldmatrix_x4\(", loop)) == 4


@pytest.mark.parametrize(("tile_k", "places"), [(64, ["", "a", "b", ""]), (32, ["ab", ""])])
def test_copies_lie_between_the_products_of_a_long_step(tile_k: int, places: list[str]) -> None:
    gemm = Gemm.parse("4096x4096x4096:f16:nt")
    knobs: dict[str, Value] = {"tile_m": 128, "tile_n": 256, "tile_k": tile_k, "warps_m": 2, "warps_n": 4, "stages": 3}
    source = _source(gemm, "sm_90a", **knobs)
    loop = source[source.index(f"< {4096 // tile_k}; ++") :]
    before_products = loop[: loop.index("\n  }\n")].split("tirgemm_mma_f32_f16(")[:-1]
    copied = ["".join(re.findall(r"tirgemm_cp_async_16\(.*&\((a|b)_ptr", text)) for text in before_products]
    assert copied == places
    assert ["tirgemm_commit();" in text for text in before_products] == [place.endswith("b") for place in places]


def test_no_instruction_is_left_out_of_the_products() -> None:
    gemm = Gemm.parse("1024x1024x1024:f16:nt")
    source = _source(gemm, "sm_80", tile_m=64, tile_n=64, tile_k=64, warps_m=2, warps_n=2, registers=1)
    # Four times 16 of k, each a loop of 2 by 4 instructions for a warp of 32 x 32.
    assert len(re.findall(r"tirgemm_mma_f32_f16\(\(&", source)) == 4
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in source


@pytest.mark.parametrize("epilogue", ["direct", "staged"])
def test_offsets_beyond_32_bits_compile(epilogue: str) -> None:
    gemm = Gemm.parse("60000x60000x4104:f16:nn:batch=2:beta")
    _, binary = _compiled(gemm, "sm_90a", epilogue=epilogue, load="copy")
    assert binary.resources["spill_bytes"] == 0
    assert "(int64_t)" in binary.sources["kernel.cu"]


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("300000000x1x3:f16:nn", 1),  # a copy of A with rows of 8
        ("1..300000000x1x3:f16:nn", 1),
        ("1x1x2147483640:f16:nt", 3),  # three parts are whole tiles up to 2147483712
    ],
)
def test_offsets_that_only_copies_and_parts_bring_beyond_32_bits_are_wide(text: str, split: int) -> None:
    gemm = Gemm.parse(text)
    assert index_dtype(gemm) == "int32"
    _, binary = _compiled(gemm, "sm_90a", split=split)
    assert "(int64_t)" in binary.sources["kernel.cu"]


@pytest.mark.parametrize(
    ("text", "wide", "narrow"),
    [("48x200x4096:f16:nt:lda=40000000", "a", "b"), ("1..1100x1000x712:bf16:tn", "a_packed", "b")],
)
def test_rows_far_apart_or_of_unknown_length_have_addresses_as_indices(text: str, wide: str, narrow: str) -> None:
    """What is behind an address is counted in 32 bits, and must be known."""
    _, binary = _compiled(Gemm.parse(text), "sm_90a", tile_m=32, tile_n=32, warps_m=2, warps_n=2, split=1, raster=1)
    lines = [line for line in binary.sources["kernel.cu"].splitlines() if "tirgemm_cp_async_16" in line]
    origins = {
        name: [line.partition(f"&({name}_ptr[")[0] for line in lines if f"&({name}_ptr[" in line]
        for name in (wide, narrow)
    }
    assert origins[wide]
    assert all(line.endswith(", (") for line in origins[wide]), origins[wide]
    assert origins[narrow]
    assert all(line.endswith("((char*)(") for line in origins[narrow]), origins[narrow]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        # B's one tile is 2^31 elements high.
        (
            "40000x200x4096:f16:nt:lda=50000:ldb=8388608",
            {"tile_m": 128, "tile_n": 256, "tile_k": 32, "warps_m": 2, "warps_n": 4, "split": 1, "raster": 1},
        ),
        ("200x4000x4096:f16:nt:ldd=9000000", {}),
        ("200x4000x4096:f16:nt:beta:ldc=9000000", {}),
        ("100x20000000x72:f16:nt", {}),
        # The copy of A with aligned rows has 2^31 elements.
        (
            "65536x64x32713:f16:nt",
            {"tile_m": 64, "tile_n": 64, "tile_k": 16, "warps_m": 2, "warps_n": 2, "registers": 1},
        ),
        # One more matrix of the batch.
        ("64x64x64:bf16:nt:batch=2:stride_d=2112214472", {}),
        # What the threads of the repack kernel's last block count on to: 64 matrices of B, rows of A.
        ("16x4x7:f16:nt:batch=3:stride_b=40000000", {}),
        ("1..16x16x7:f16:nt:lda=80000001", {}),
    ],
)
def test_whole_tiles_beyond_32_bits_have_wide_offsets(text: str, changes: dict[str, Value]) -> None:
    """The tensors' own elements are counted in 32 bits; whole tiles of one of them are not."""
    gemm = Gemm.parse(text)
    assert index_dtype(gemm) == "int32"
    assert "(int64_t)" in _source(gemm, "sm_90a", **changes)


@pytest.mark.parametrize(("text", "way"), [("1024x1024x1024:f16:nt", "line"), ("1024x1024x1024:f16:tn", "half")])
def test_threads_copy_what_the_copy_as_data_says(text: str, way: str) -> None:
    """The source's first turn writes, thread by thread, what ``Side.copy`` gives to that thread, and all turns the
    tile."""
    gemm, device = Gemm.parse(text), named_device("sm_90a")
    changes = {"tile_m": 128, "tile_n": 64, "tile_k": 64, "warps_m": 2, "warps_n": 2, "stages": 2, "resident": 1}
    config = _FAMILY.default(gemm, device, "sustained").with_(**changes, shared="none", copy=way, epilogue="direct")
    source, cut = cuda.lower(_FAMILY.instantiate(gemm, config, device), device.arch)[1], tiling(gemm, config)
    calls = re.findall(
        r"^ +tirgemm_cp_async_16\(\(\(half\*\)\(\(\(char\*\)\(&\(tiles_ptr\[(.*?)\]\)\)\) \+ \((.*?)\)\)\), ",
        source,
        re.MULTILINE,
    )
    for side, call, start in zip(cut.sides, calls[:2], (0, cut.a.nbytes // 2), strict=True):
        # C of non-negative integers without division is Python too.
        place, further = (re.sub(r"\bax\w+", "turn", text.replace("((int)threadIdx.x)", "thread")) for text in call)
        written = [
            [
                eval(place, {"thread": thread}) - start + eval(further, {"turn": turn}) // 2
                for thread in range(cut.threads)
            ]
            for turn in range(side.rows * side.runs // cut.threads)
        ]
        row, column = side.copy.elements()[:, 0].T
        own, deep = (row, column) if side.k_major else (column, row)
        assert written[0] == (own * side.runs * 8 + deep).tolist()
        assert sorted(at for turn in written for at in turn) == list(range(0, side.rows * side.runs * 8, 8))
