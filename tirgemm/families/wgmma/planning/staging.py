"""Staging of outputs: buffers of shared memory through which a consumer's part of D passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, SWIZZLES
from tirgemm.families.wgmma.planning.warpgroups import MMA_M

# Widest and least columns that are staged at a time, and how many where the stages leave no room for the widest. Of
# even fewer, what one more stage gains is lost again: their rows are single sectors (docs/decisions/wgmma-stores.md).
_WIDEST_CHUNK, _LEAST_CHUNK, _NARROWED_CHUNK = 64, 8, 32
# Tiles of D in shared memory a consumer: one fills while TMA stores the other.
_BUFFERS = 2
# Bytes of one column of a consumer's buffers.
_COLUMN_BYTES = _BUFFERS * MMA_M * ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class Staging:
    """Chunks of ``columns`` of the tile, staged one after the other by each of ``consumers``. ``used``: whether D
    passes through shared memory at all. ``reads_c``: the epilogue reads C, which leaves no registers for the widest
    chunk. ``vector``: how many elements threads store at once, where it is not TMA that stores. ``room``: bytes of
    shared memory that the stages leave."""

    columns: int
    consumers: int
    swapped: bool
    used: bool
    reads_c: bool
    vector: int
    room: int

    @property
    def chunk(self) -> int:
        """Columns of the tile that are staged in shared memory at a time."""
        return int(staged_columns(self.columns, self.reads_c, self.consumers, self.room))

    @property
    def chunks(self) -> tuple[int, ...]:
        """The first column of every chunk. The last may begin inside the one before: the same outputs are stored
        twice."""
        return tuple(min(c, self.columns - self.chunk) for c in range(0, self.columns, self.chunk))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of D and columns of D in one buffer of staged outputs."""
        return (self.chunk, MMA_M) if self.swapped else (MMA_M, self.chunk)

    @property
    def swizzle(self) -> int:
        return SWIZZLES[self.shape[1] * ELEMENT_BYTES]

    @property
    def buffers(self) -> int:
        return _BUFFERS

    @property
    def nbytes(self) -> int:
        return self.consumers * self.chunk * _COLUMN_BYTES if self.used else 0


def chunk_columns(columns: Any, reads_c: bool) -> Any:
    """How many of a tile's columns are staged at a time, 64, 32, 16 or 8: of one tile or of an array of them. The
    widest that the tile has; where the epilogue reads C, which it may do only once, the widest that divides it."""
    chunk: Any = _LEAST_CHUNK
    width = 2 * _LEAST_CHUNK
    while width <= _WIDEST_CHUNK:
        chunk = chunk * (1 + (columns % width == 0 if reads_c else columns >= width))
        width *= 2
    return chunk


def staged_columns(columns: Any, reads_c: bool, consumers: Any, room: Any) -> Any:
    """How many columns each of ``consumers`` stages at a time in ``room`` bytes of shared memory, of one tile or of
    arrays of them: ``chunk_columns``, but 32 where 64 do not fit and 32 do."""
    widest = chunk_columns(columns, reads_c)
    too_wide = (widest > _NARROWED_CHUNK) & (consumers * _COLUMN_BYTES * widest > room)
    return np.where(too_wide & (consumers * _COLUMN_BYTES * _NARROWED_CHUNK <= room), _NARROWED_CHUNK, widest)


def staged_bytes(consumers: Any, columns: Any, reads_c: bool, *, narrowed: Any = False) -> Any:
    """Bytes of shared memory in which ``consumers`` stage a tile's columns: of one tile or of arrays of them.
    ``narrowed``: in chunks of 32 columns where the widest have 64."""
    chunk = chunk_columns(columns, reads_c)
    return consumers * _COLUMN_BYTES * np.where(narrowed, np.minimum(chunk, _NARROWED_CHUNK), chunk)
