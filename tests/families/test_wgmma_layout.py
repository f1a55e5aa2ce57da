"""What TMA writes to shared memory is what wgmma reads there, and what stmatrix writes is what a TMA store reads.

TMA and wgmma are modelled from the PTX manual: a box is written row by row, 16-byte units permuted by address bits;
a descriptor addresses 8x8 core matrices by its two offsets, permuted alike.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.wgmma_paths import plan_of
from tirgemm.analysis.banks.wavefronts import analyze
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, ELEMENT_BYTES, MMA_K, UNIT, Tile, permuted
from tirgemm.families.wgmma.planning.warpgroups import MMA_M
from tirgemm.families.wgmma.space import TILES_N

TILES = [
    Tile(k_major=k_major, extent=extent, tile_k=tile_k, peers=peers)
    for k_major in (True, False)
    for extent in TILES_N
    for tile_k in (64, 128)
    for peers in (1, 2)
]


def swizzle(address: int, row_bytes: int) -> int:
    """Bits 4 and up flipped by bits 7 and up: three of them for rows of 128 bytes, two for 64, one for 32."""
    bits = {128: 7, 64: 3, 32: 1}[row_bytes]
    return address ^ ((address >> 7 & bits) << 4)


def loaded(tile: Tile) -> dict[int, tuple[int, int]]:
    """Byte address -> (m or n, k) of the element there, after every block of the cluster has loaded its part."""
    memory = {}
    row_bytes = tile.width * ELEMENT_BYTES
    for peer in range(tile.peers):
        for slab in range(tile.slabs):
            start = (slab * tile.slab + peer * tile.rows_loaded * tile.width) * ELEMENT_BYTES
            assert start % 128 == 0, "TMA writes to addresses that are multiples of 128 bytes"
            for row in range(tile.rows_loaded):
                for column in range(tile.width):
                    outer, inner = peer * tile.rows_loaded + row, slab * tile.width + column
                    address = swizzle(start + row * row_bytes + column * ELEMENT_BYTES, row_bytes)
                    assert address not in memory
                    memory[address] = (outer, inner) if tile.k_major else (inner, outer)
    return memory


def read(tile: Tile, number: int, first: int, row: int, k: int) -> int:
    """The address that a wgmma reads for element (row, k) of its operand, ``first`` rows below the tile's first."""
    start = (tile.step(number) + tile.below(first)) * UNIT
    row_bytes = tile.width * ELEMENT_BYTES
    if tile.k_major:
        inside = row % CORE_ROWS * row_bytes + row // CORE_ROWS * tile.stride_offset * UNIT + k * ELEMENT_BYTES
    else:
        slab, column = divmod(row, tile.width)
        group, line = divmod(k, CORE_ROWS)
        inside = column * ELEMENT_BYTES + slab * tile.leading_offset * UNIT + line * row_bytes
        inside += group * tile.stride_offset * UNIT
    return swizzle(start + inside, row_bytes)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_wgmma_reads_the_elements_that_tma_wrote(tile: Tile) -> None:
    memory = loaded(tile)
    assert sorted(memory) == list(range(0, tile.nbytes, ELEMENT_BYTES))
    blocks = range(0, tile.extent, MMA_M) if tile.extent % MMA_M == 0 else (0,)
    rows = MMA_M if tile.extent % MMA_M == 0 else tile.extent
    for first in blocks:
        for number in range(tile.tile_k // MMA_K):
            for row in range(0, rows, 3):
                for k in range(MMA_K):
                    actual = memory[read(tile, number, first, row, k)]
                    assert actual == (first + row, number * MMA_K + k)


@pytest.mark.parametrize("columns", [16, 32, 64])
def test_staged_rows_are_permuted_as_tma_reads_them(columns: int) -> None:
    units = columns * ELEMENT_BYTES // UNIT
    for row in range(MMA_M):
        for unit in range(units):
            address = row * columns * ELEMENT_BYTES + unit * UNIT
            ours = row * columns * ELEMENT_BYTES + permuted(row, unit, units) * UNIT
            assert ours == swizzle(address, columns * ELEMENT_BYTES)


@pytest.mark.parametrize("columns", [32, 64])
def test_eight_lanes_of_stmatrix_write_to_different_banks(columns: int) -> None:
    units = columns * ELEMENT_BYTES // UNIT
    rows = np.arange(8)
    units_written = {(row * units + permuted(int(row), 1, units)) % 8 for row in rows}
    # Rows of 64 bytes: 8 lanes cover 8 units of 4 rows' worth of banks.
    assert len(units_written) == 8


@pytest.mark.parametrize(("swap", "tile_n"), [(0, 8), (0, 16), (0, 40), (0, 128), (1, 8), (1, 16), (1, 128)])
def test_boxes_of_outputs_of_four_bytes_fill_a_buffer_once(swap: int, tile_n: int) -> None:
    staging = plan_of("4096x4096x4096:f16:nt:out=f32", {"swap": swap, "tile_n": tile_n}).staging
    rows, columns = staging.shape
    assert columns * 4 <= 128, "a swizzled row has at most 128 bytes"
    assert staging.boxes * rows * columns * 4 * staging.buffers * staging.consumers == staging.nbytes
    assert rows * columns * 4 % 1024 == 0, "the swizzle repeats every 1024 bytes"
    units = columns // staging.unit
    for row in range(rows):
        for unit in range(units):
            place = row * columns * 4 + permuted(row, unit, units) * UNIT
            assert place == swizzle(row * columns * 4 + unit * UNIT, columns * 4)


@pytest.mark.parametrize(("columns", "wavefronts"), [(32, 4), (16, 4), (8, 2)])
def test_rows_in_the_same_banks_must_not_store_the_same_fragment_of_pairs(columns: int, wavefronts: int) -> None:
    """What the epilogue's exchange of fragments is for: without it pairs of four bytes take twice as long."""
    lane = np.arange(32)
    row, column = lane // 4, lane % 4 * 2
    unit = np.array([permuted(int(r), int(c) // 4, columns // 4) for r, c in zip(row, column, strict=True)])
    report = analyze(row * columns * 4 + unit * UNIT + column % 4 * 4, "store.64")
    assert report.total_wavefronts == wavefronts
    assert report.total_conflicts == wavefronts - 2
