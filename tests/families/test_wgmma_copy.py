"""The wgmma producer that copies by cp.async: stages are what TMA would have written, nothing outside is read, it
compiles.

Copies are modelled thread by thread on arrays; what TMA writes is modelled from the PTX manual: a box row by row,
16-byte units permuted by address bits, zeros outside the matrix.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.wgmma_paths import plan_of
from tirgemm.config import Value
from tirgemm.families.base import require_valid
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wgmma.planning.alignment import copy_bytes
from tirgemm.families.wgmma.planning.copies import COPYING_THREADS, Copies, copies_of
from tirgemm.families.wgmma.planning.maps import edge_map
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.registers import registers
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, Tile
from tirgemm.families.wgmma.program import program
from tirgemm.families.wgmma.space import loads
from tirgemm.gemm import Gemm, Operand
from tirgemm.hardware import named_device
from tirgemm.launch import Pointer, TensorMap
from tirgemm.tuning.build import cuda
from tirgemm.tuning.driver.nvrtc import Cubin, compile_source

FAMILY = Wgmma()
H200 = named_device("sm_90a")
KNOBS: dict[str, Value] = {"load": "copy", "epilogue": "staged"}

Stage = NDArray[np.int64]
POISON = -1


def copying(text: str, **changes: Value) -> Plan:
    return plan_of(text, KNOBS | changes)


def swizzle(address: int, row_bytes: int) -> int:
    bits = {128: 7, 64: 3, 32: 1}[row_bytes]
    return address ^ ((address >> 7 & bits) << 4)


def by_tma(tile: Tile, matrix: Stage, row0: int, column0: int) -> Stage:
    """The stage, by elements, after TMA has loaded the tile whose first element is (row0, column0) in memory."""
    stage = np.full(tile.elements, POISON)
    row_bytes = tile.width * ELEMENT_BYTES
    for slab in range(tile.slabs):
        for row in range(tile.rows):
            for column in range(tile.width):
                address = (slab * tile.slab + row * tile.width + column) * ELEMENT_BYTES
                at = (row0 + row, column0 + slab * tile.width + column)
                inside = at[0] < matrix.shape[0] and at[1] < matrix.shape[1]
                stage[swizzle(address, row_bytes) // ELEMENT_BYTES] = matrix[at] if inside else 0
    return stage


def by_copies(shape: Copies, memory: Stage, sizes: tuple[int, int], ld: int, row0: int, column0: int) -> Stage:
    """The stage after every thread's copies, from flat ``memory`` that ends with the matrix's last element."""
    stage = np.full(shape.tile.elements, POISON)
    for thread in range(COPYING_THREADS):
        row, column = row0 + shape.row(thread), column0 + shape.column(thread)
        for slab in range(shape.tile.slabs):
            for number in range(shape.passes):
                source = row * ld + column + shape.source(slab, number, ld)
                to = shape.to(thread, number % shape.phases) + shape.further(slab, number)
                size = shape.size(sizes[0] - row, sizes[1] - column, slab, number)
                assert shape.by_elements or source * ELEMENT_BYTES % shape.nbytes == 0, "a source that is not aligned"
                assert to % shape.nbytes == 0, "a destination that is not aligned"
                assert 0 <= size <= shape.nbytes
                assert size == 0 or source + size // ELEMENT_BYTES <= memory.size, "a read behind the matrix"
                copied = np.zeros(shape.elements, dtype=np.int64)
                copied[: size // ELEMENT_BYTES] = memory[source : source + size // ELEMENT_BYTES]
                first = to // ELEMENT_BYTES
                assert (stage[first : first + shape.elements] == POISON).all(), "written twice"
                stage[first : first + shape.elements] = copied
    return stage


def drawn(seed: int) -> tuple[Copies, tuple[int, int], int, int, int]:
    """A tile, a matrix in memory and a place on the tile's grid: at an edge, inside or outside altogether."""
    rng = random.Random(seed)
    k_major, nbytes, by_elements = bool(seed & 1), (4, 8)[seed >> 1 & 1], seed % 5 == 0
    nbytes = 8 if by_elements else nbytes
    extent = rng.choice((8, 24, 64, 128, 200, 256) if k_major else (16, 24, 32, 64, 96, 112, 136, 192))
    tile = Tile(k_major, extent, rng.choice((64, 128)), 1)
    tile_rows, tile_columns = (tile.extent, tile.tile_k) if k_major else (tile.tile_k, tile.extent)
    rows, columns = rng.randrange(1, 3 * tile_rows), rng.randrange(1, 3 * tile_columns)
    if seed % 3 == 0:
        rows, columns = 2 * tile_rows, 2 * tile_columns
    step = 1 if by_elements else nbytes // ELEMENT_BYTES
    columns = -(-columns // step) * step
    ld = columns + step * rng.randrange(4)
    shape = Copies(tile, nbytes, rows % tile_rows != 0, columns % tile_columns != 0 or tile.overhangs, by_elements)
    row0 = tile_rows * rng.randrange(1 - (-rows // tile_rows) if shape.beyond_rows else rows // tile_rows)
    column0 = tile_columns * rng.randrange(-(-columns // tile_columns))
    return shape, (rows, columns), ld, row0, column0


@pytest.mark.parametrize("seed", range(48))
def test_copies_write_what_tma_would_and_read_nothing_else(seed: int) -> None:
    shape, sizes, ld, row0, column0 = drawn(seed)
    rng = np.random.default_rng(seed)
    padded = rng.integers(1, 2**16, sizes[0] * ld)
    memory = padded[: (sizes[0] - 1) * ld + sizes[1]]
    matrix = padded.reshape(sizes[0], ld)[:, : sizes[1]]
    actual = by_copies(shape, memory, sizes, ld, row0, column0)
    np.testing.assert_array_equal(actual, by_tma(shape.tile, matrix, row0, column0))


def test_a_copy_of_too_much_of_a_row_is_noticed() -> None:
    shape, sizes, ld = Copies(Tile(True, 64, 64, 1), 8, False, True), (64, 62), 64
    memory = np.arange(1, 63 * ld + sizes[1] + 1)
    with pytest.raises(AssertionError, match="behind the matrix"):
        by_copies(shape, memory, sizes, ld, 0, 0)


def test_a_warp_copies_whole_rows_and_no_bank_conflicts_where_rows_are_128_bytes() -> None:
    for nbytes in (4, 8):
        shape = Copies(Tile(True, 64, 64, 1), nbytes, False, False)
        # A request of 128 bytes: so many neighbouring threads.
        for first in range(0, COPYING_THREADS, 128 // nbytes):
            words = {shape.to(t, 0) // 4 % 32 for t in range(first, first + 128 // nbytes)}
            assert len(words) == 128 // nbytes
            assert len({shape.row(t) for t in range(first, first + 128 // nbytes)}) == 1


@pytest.mark.parametrize(
    ("text", "operand", "nbytes"),
    [
        ("64x64x68:f16:nt", "a", 8),
        ("64x64x66:f16:nt", "b", 4),
        ("64x64x65:f16:nt", "a", 2),
        ("64x64x65:f16:nt:lda=68", "a", 2),
        ("64x64x64:f16:nt:align=8", "a", 8),
        ("64x64x64:bf16:nt:align=4", "a", 4),
        ("64x64x64:f16:nt:align=2", "a", 2),
        ("64x64x129:f16:nt", "a", 0),
        ("1..64x64x65:f16:tt", "a", 0),
        ("1..64x64x68:f16:nt:batch=2", "a", 8),
        ("1..64x64x66:f16:nt:batch=2", "a", 4),
        ("1..64x64x66:f16:tt", "a", 0),
        ("1..64x64x66:f16:tt:lda=66", "a", 2),
        ("64x64x68:f16:nt:batch=2:stride_a=4358", "a", 4),
        ("64x64x68:f16:nt:batch=2:stride_a=4359", "a", 2),
    ],
)
def test_copies_are_as_wide_as_every_address_is_aligned(text: str, operand: Operand, nbytes: int) -> None:
    assert copy_bytes(Gemm.parse(text), operand) == nbytes


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("4096x4096x4096:f16:nt", ("tma",)),
        ("4096x4096x4100:f16:nt", ("repack", "copy")),
        ("4096x4096x4097:f16:nt", ("repack",)),
        ("4096x4096x127:f16:nt", ("repack", "copy")),
        ("4096x4097x4096:f16:nn", ("repack",)),
        ("4096x4098x4096:f16:nn", ("repack", "copy")),
        ("4096x4096x4098:f16:nt:ldb=4099", ("repack",)),
    ],
)
def test_copies_are_offered_where_they_suit_every_operand_that_tma_cannot_load(
    text: str, ways: tuple[str, ...]
) -> None:
    assert loads(Gemm.parse(text)) == ways


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("4096x4096x4100:f16:nt", {"cluster_m": 2}, "cluster_m=2 shares tiles of B"),
        ("4096x4096x4100:f16:nt", {"cluster_n": 2}, "cluster_n=2 shares tiles of A"),
        ("4096x4096x4100:f16:nt", {"cluster_m": 2, "swap": 1}, "cluster_m=2 shares tiles of A"),
        ("4096x4096x97:f16:nt", {}, None),
        ("4096x4096x4097:f16:nt", {}, "or a short k"),
        ("1..4096x4096x97:f16:tt", {}, "or a short k"),
        ("4096x4096x4096:f16:nt:lda=4100", {"cluster_n": 2}, "cluster_n=2 shares tiles of A"),
        ("4096x4096x4096:f16:nt:lda=4100", {"cluster_m": 2}, None),
        (
            "4096x4096x4100:f16:nt",
            {"resident": 2, "tile_n": 64, "schedule": "pingpong", "stages": 2},
            "takes 40 registers",
        ),
        ("4096x4096x4100:f16:nt", {"resident": 2, "tile_n": 64, "stages": 2}, None),
    ],
)
def test_rule_of_copies_says_why(text: str, changes: dict[str, Value], words: str | None) -> None:
    cut = copying(text, **changes)
    actual = next((rule.check(cut.gemm, cut.config, H200) for rule in FAMILY.rules if rule.name == "load"), None)
    assert actual == words if words is None else words in str(actual)


CASES = [
    ("4096x4096x4100:f16:nt", {}),
    ("4096x4096x4100:f16:nt", {"tile_n": 192, "schedule": "pingpong", "epilogue": "tma"}),
    ("4096x4096x4098:bf16:nt", {"tile_m": 192, "tile_n": 160, "tile_k": 128, "stages": 2, "l2_promotion": 3}),
    ("4094x4098x4097:f16:tn", {"tile_n": 192, "schedule": "pingpong", "epilogue": "direct", "eviction": "first_last"}),
    ("4096x4096x4096:f16:nn:lda=4100", {"tile_n": 256, "cluster_m": 2, "epilogue": "tma", "l2_promotion": 0}),
    ("1..4100x4100x4098:f16:nt:batch=3:beta:act=gelu", {"tile_n": 64}),
    ("16x4096x4098:f16:nt", {"tile_m": 64, "tile_n": 16, "split": 4, "group": 1, "swap": 1}),
    ("2044x4300x4100:f16:tt:ldb=4104:lda=2052", {"eviction": "first"}),
]


def built(cut: Plan) -> tuple[str, Cubin]:
    require_valid(FAMILY, cut.gemm, cut.config, H200)
    written = program(cut)
    host, source = cuda.lower(written, H200.arch)
    params = cuda.checked_launch(written, host).kernels[0].params
    operands: tuple[Operand, ...] = ("a", "b")
    for operand in operands:
        passed = [type(p) for p in params if isinstance(p, Pointer | TensorMap) and p.name == operand]
        maps = 1 + (edge_map(cut, operand) is not None)
        assert passed == ([Pointer] if cut.loads.copied[operand] else [TensorMap] * maps)
    return source, compile_source(source, H200.arch)


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[f"{text} {changes}" for text, changes in CASES])
def test_kernel_that_copies_compiles_without_spills_or_serialised_wgmmas(text: str, changes: dict[str, Value]) -> None:
    cut = copying(text, **changes)
    source, cubin = built(cut)
    assert not cubin.serialised, cubin.log
    kernel = cubin.resources["wgmma_gemm_kernel"]
    assert kernel.spill_bytes == 0
    assert kernel.stack_bytes == 0
    dealt = registers(cut)
    given = 128 * (dealt.producer + cut.warpgroups.consumers * dealt.consumer)
    assert given <= kernel.registers * cut.warpgroups.threads
    # Between waiting for a stage and reading it by wgmma a consumer makes the copies visible.
    assert re.search(r"fence_proxy_\w*async\w*\(\);\s+tvm_builtin_ptx_wgmma_fence_\w+\(\);", source)
    counts = set(re.findall(r"mbarrier_init_\w+\(.*\(uint\)(\d+)\);", source))
    assert str(COPYING_THREADS + cut.loads.uses_tma) in counts


def test_source_has_one_copy_for_each_place_of_the_model() -> None:
    cut = copying("4096x4096x4100:f16:nt", tile_n=64)
    source, _ = built(cut)
    body = source[source.index("wgmma_gemm_kernel(") :]
    calls = re.findall(r"cp_async_ca_(src_size_)?async_ca_shared_global_L2__128B_8(?:_addr0_p(\d+))?\(", body)
    expected = []
    for operand in (cut.orientation.left_operand, cut.orientation.right_operand):
        shape = copies_of(cut, operand)
        expected += [shape.further(s, n) for s in range(shape.tile.slabs) for n in range(shape.passes)]
    for sized in ("", "src_size_"):
        assert sorted(int(place or 0) for kind, place in calls if kind == sized) == sorted(expected)
