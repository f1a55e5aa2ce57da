"""Staging of outputs: buffers of shared memory through which a consumer's part of D passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, SLAB_BYTES, SWIZZLES, UNIT
from tirgemm.families.wgmma.planning.warpgroups import MMA_M

# Bytes of a staged row at most, and where the stages leave no room for those. Of even fewer, what one more stage gains
# is lost again: such rows are single sectors (docs/decisions/wgmma-stores.md).
_WIDEST_ROW, _NARROWED_ROW = SLAB_BYTES, SLAB_BYTES // 2
# Columns that are staged at a time at least: those of a fragment.
_LEAST_CHUNK = 8
# Tiles of D in shared memory a consumer: one fills while TMA stores the other.
_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Staging:
    """Chunks of ``columns`` of the tile, staged one after the other by each of ``consumers``. ``used``: whether D
    passes through shared memory at all. ``reads_c``: the epilogue reads C, which leaves no registers for the widest
    chunk. ``vector``: how many elements threads store at once, where it is not TMA that stores. ``room``: bytes of
    shared memory that the stages leave. ``size``: bytes of an output."""

    columns: int
    consumers: int
    swapped: bool
    used: bool
    reads_c: bool
    vector: int
    room: int
    size: int = ELEMENT_BYTES

    @property
    def chunk(self) -> int:
        """Columns of the tile that are staged in shared memory at a time."""
        return int(staged_columns(self.columns, self.reads_c, self.consumers, self.room, self.size))

    @property
    def chunks(self) -> tuple[int, ...]:
        """The first column of every chunk. The last may begin inside the one before: the same outputs are stored
        twice."""
        return tuple(min(c, self.columns - self.chunk) for c in range(0, self.columns, self.chunk))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of D and columns of D that one store takes out of a buffer of staged outputs."""
        return (self.chunk, MMA_M // self.boxes) if self.swapped else (MMA_M, self.chunk)

    @property
    def boxes(self) -> int:
        """Stores that take a buffer, which lie one behind the other in it: a swizzled row has at most 128 bytes, and
        where D is transposed a buffer has 64 of its columns."""
        return max(1, MMA_M * self.size // SLAB_BYTES) if self.swapped else 1

    @property
    def swizzle(self) -> int:
        return SWIZZLES[self.shape[1] * self.size]

    @property
    def unit(self) -> int:
        """Outputs of the 16 bytes that a swizzle moves together."""
        return UNIT // self.size

    @property
    def buffers(self) -> int:
        return _BUFFERS

    @property
    def nbytes(self) -> int:
        return self.consumers * self.chunk * _column_bytes(self.size) if self.used else 0


def chunk_columns(columns: Any, reads_c: bool, size: int = ELEMENT_BYTES) -> Any:
    """How many of a tile's columns are staged at a time, of one tile or of an array of them: 64, 32, 16 or 8 outputs of
    two bytes, half of 64 at most where an output's ``size`` is four. The widest that the tile has; where the epilogue
    reads C, which it may do only once, the widest that divides it."""
    chunk: Any = _LEAST_CHUNK
    width = 2 * _LEAST_CHUNK
    while width <= _WIDEST_ROW // size:
        chunk = chunk * (1 + (columns % width == 0 if reads_c else columns >= width))
        width *= 2
    return chunk


def staged_columns(columns: Any, reads_c: bool, consumers: Any, room: Any, size: int = ELEMENT_BYTES) -> Any:
    """How many columns each of ``consumers`` stages at a time in ``room`` bytes of shared memory, of one tile or of
    arrays of them: ``chunk_columns``, but half of the widest, 32 for 64, where that does not fit and half of it does.
    """
    widest, narrowed = chunk_columns(columns, reads_c, size), _NARROWED_ROW // size
    too_wide = (widest > narrowed) & (consumers * _column_bytes(size) * widest > room)
    return np.where(too_wide & (consumers * _column_bytes(size) * narrowed <= room), narrowed, widest)


def staged_bytes(
    consumers: Any, columns: Any, reads_c: bool, *, narrowed: Any = False, size: int = ELEMENT_BYTES
) -> Any:
    """Bytes of shared memory in which ``consumers`` stage a tile's columns: of one tile or of arrays of them.
    ``narrowed``: in chunks of half as many columns where they are the widest."""
    chunk = chunk_columns(columns, reads_c, size)
    return consumers * _column_bytes(size) * np.where(narrowed, np.minimum(chunk, _NARROWED_ROW // size), chunk)


def _column_bytes(size: int) -> int:
    """Bytes of one column of a consumer's buffers."""
    return _BUFFERS * MMA_M * size
