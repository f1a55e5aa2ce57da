"""Shared-memory layout of one operand's tile: slabs that TMA writes swizzled and wgmma reads by descriptor.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"; the canonical layouts in CUTLASS's
``mma_sm90_desc.hpp``. Integers only, no TVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirgemm.errors import InvalidConfig

ELEMENT_BYTES = 2
# Bytes of a descriptor's unit.
UNIT = 16
# k of one wgmma of 16-bit operands, and rows of a core matrix.
MMA_K = 16
CORE_ROWS = 8
SLAB_BYTES = 128
# Units in 128 bytes: rows of fewer share a step of the permutation.
_PERIOD = 8
# Bytes of a swizzled row -> the driver's CUtensorMapSwizzle, which the descriptor helper takes too.
SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True, slots=True)
class Tile:
    """``extent`` rows of m or n by ``tile_k`` of k, for one stage.

    Where k is contiguous in memory (``k_major``) a slab is ``extent`` rows of ``width`` of k, else ``tile_k`` rows of
    ``width`` of m or n, the last of which may reach beyond the tile. ``peers`` blocks of the cluster each load an equal
    part of every slab's rows for all of them.
    Raises InvalidConfig where the parts cannot be equal.
    """

    k_major: bool
    extent: int
    tile_k: int
    peers: int

    def __post_init__(self) -> None:
        if self.rows % self.peers:
            raise InvalidConfig(f"wgmma: {self.peers} blocks cannot share {self.rows} rows of a tile in equal parts")

    @property
    def width(self) -> int:
        """Elements of a slab's row: 128 bytes, or fewer where narrower rows save a quarter (``slab_width``)."""
        return SLAB_BYTES // ELEMENT_BYTES if self.k_major else slab_width(self.extent)

    @property
    def slabs(self) -> int:
        return -(-(self.tile_k if self.k_major else self.extent) // self.width)

    @property
    def overhangs(self) -> bool:
        """Whether the last slab reaches beyond the tile."""
        return not self.k_major and self.extent % self.width > 0

    @property
    def rows(self) -> int:
        """Rows of a slab."""
        return self.extent if self.k_major else self.tile_k

    @property
    def rows_loaded(self) -> int:
        """Rows of a slab that one block loads."""
        return self.rows // self.peers

    @property
    def slab(self) -> int:
        """Elements of a slab."""
        return self.rows * self.width

    @property
    def elements(self) -> int:
        return self.slabs * self.slab

    @property
    def nbytes(self) -> int:
        return self.elements * ELEMENT_BYTES

    @property
    def swizzle(self) -> int:
        return SWIZZLES[self.width * ELEMENT_BYTES]

    @property
    def leading_offset(self) -> int:
        """Units from one slab to the next along m or n; not used where k is contiguous."""
        return 1 if self.k_major else units(self.slab)

    @property
    def stride_offset(self) -> int:
        """Units from one group of eight rows to the next."""
        return units(CORE_ROWS * self.width)

    def step(self, number: int) -> int:
        """Units from the tile's start to its wgmma number ``number`` along k."""
        k = number * MMA_K
        if self.k_major:
            return k // self.width * units(self.slab) + units(k % self.width)
        return units(k * self.width)

    def below(self, rows: int) -> int:
        """Units from the tile's start to ``rows`` further along m or n, a multiple of 64."""
        return units(rows * self.width) if self.k_major else rows // self.width * units(self.slab)


def permuted(row: Any, unit: Any, units_of_row: int) -> Any:
    """Which 16 bytes of its row hold unit ``unit`` of row ``row``, for rows of 8, 4, 2 or 1 units: TMA's swizzle.

    Bits 4 and up of an address are flipped by bits 7 and up of it, as many as a row's units need. For integers and for
    TIR expressions.
    """
    return unit ^ (row // (_PERIOD // units_of_row) % units_of_row)


def slab_width(extent: Any) -> Any:
    """Elements of the rows of slabs that hold so many of m or n, of one extent or of an array of them: 64, but 32 where
    slabs of 32 take at most three quarters of the elements, and 16 for up to 16. TMA takes as long for a row of 32
    bytes as for one of 128; what a tile does not need costs bandwidth and shared memory."""
    narrow, wide = (extent + 31) & -32, (extent + 63) & -64
    return MMA_K << ((extent > 16) * 1 + (4 * narrow > 3 * wide))


def slab_extent(extent: Any) -> Any:
    """Elements of m or n that all slabs of a tile have room for where k is not contiguous."""
    width = slab_width(extent)
    return (extent + width - 1) & -width


def units(elements: int) -> int:
    return elements * ELEMENT_BYTES // UNIT
