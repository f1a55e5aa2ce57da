"""What TMA writes to shared memory is what wgmma reads there, and what stmatrix writes is what a TMA store reads.

TMA and wgmma are modelled from the PTX manual: a box is written row by row, 16-byte units permuted by address bits;
a descriptor addresses 8x8 core matrices by its two offsets, permuted alike.
"""

from __future__ import annotations

import numpy as np
import pytest

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
