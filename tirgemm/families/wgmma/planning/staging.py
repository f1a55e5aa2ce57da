"""Staging of outputs: buffers of shared memory through which a consumer's part of D passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, SWIZZLES
from tirgemm.families.wgmma.planning.warpgroups import MMA_M

# Widest and least columns that are staged at a time.
_WIDEST_CHUNK, _LEAST_CHUNK = 64, 8
# Tiles of D in shared memory a consumer: one fills while TMA stores the other.
_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Staging:
    """Chunks of ``columns`` of the tile, staged one after the other by each of ``consumers``. ``used``: whether D
    passes through shared memory at all. ``reads_c``: the epilogue reads C, which leaves no registers for the widest
    chunk. ``vector``: how many elements threads store at once, where it is not TMA that stores."""

    columns: int
    consumers: int
    swapped: bool
    used: bool
    reads_c: bool
    vector: int

    @property
    def chunk(self) -> int:
        """Columns of the tile that are staged in shared memory at a time."""
        return int(chunk_columns(self.columns, self.reads_c))

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
        return int(staged_bytes(self.consumers, self.columns, self.reads_c)) if self.used else 0


def chunk_columns(columns: Any, reads_c: bool) -> Any:
    """How many of a tile's columns are staged at a time, 64, 32, 16 or 8: of one tile or of an array of them. The
    widest that the tile has; where the epilogue reads C, which it may do only once, the widest that divides it."""
    chunk: Any = _LEAST_CHUNK
    width = 2 * _LEAST_CHUNK
    while width <= _WIDEST_CHUNK:
        chunk = chunk * (1 + (columns % width == 0 if reads_c else columns >= width))
        width *= 2
    return chunk


def staged_bytes(consumers: Any, columns: Any, reads_c: bool) -> Any:
    """Bytes of shared memory in which ``consumers`` stage a tile's columns: of one tile or of arrays of them."""
    return consumers * (_BUFFERS * MMA_M * ELEMENT_BYTES) * chunk_columns(columns, reads_c)
