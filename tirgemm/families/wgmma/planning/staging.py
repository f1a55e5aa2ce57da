"""Staging of outputs: buffers of shared memory through which a consumer's part of D passes."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, SWIZZLES
from tirgemm.families.wgmma.planning.warpgroups import MMA_M

# Widths of staged outputs.
_CHUNKS = (64, 32, 16, 8)
# Staged columns of D from which on a row is stored in words of 16 bytes: of fewer most elements are in no whole word.
_LEAST_BY_WORDS = 32
# Tiles of D in shared memory a consumer: one fills while TMA stores the other.
_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Staging:
    """Chunks of ``columns`` of the tile, staged one after the other by each of ``consumers``. ``used``: whether D
    passes through shared memory at all. ``may_use_words``: threads store it from there, and have the registers to do
    so by words of 16 bytes. ``reads_c``: the epilogue reads C, which leaves no registers for the widest chunk."""

    columns: int
    consumers: int
    swapped: bool
    used: bool
    may_use_words: bool
    reads_c: bool

    @property
    def chunk(self) -> int:
        """Columns of the tile that are staged in shared memory at a time."""
        if self.columns > _CHUNKS[0] and self.columns % _CHUNKS[2] == 0 and not self.reads_c:
            return _CHUNKS[0]
        return next(c for c in _CHUNKS if self.columns % c == 0)

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
    def by_words(self) -> bool:
        """Whether threads store rows in words of 16 bytes."""
        return self.may_use_words and self.shape[1] >= _LEAST_BY_WORDS

    @property
    def swizzle(self) -> int:
        return SWIZZLES[self.shape[1] * ELEMENT_BYTES]

    @property
    def buffers(self) -> int:
        return _BUFFERS

    @property
    def nbytes(self) -> int:
        return self.consumers * _BUFFERS * MMA_M * self.chunk * ELEMENT_BYTES if self.used else 0
