"""Thread-value layouts of tiled copies: CuTe's ``make_tiled_copy`` as data.

Source: CUTLASS ``include/cute/atom/copy_atom.hpp``; "CUTLASS CuTe GEMM: TiledCopy and cp.async" for the worked
examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tirgemm.errors import InvalidConfig
from tirgemm.layouts.shared import Integers

WARP = 32
_PAIR = r"\(_?(\d+),_?(\d+)\)"
_TEXT = re.compile(rf"{_PAIR}(?::{_PAIR})?")


@dataclass(frozen=True, slots=True)
class Strided:
    """Rows and columns numbered 0, 1, ... once each, along rows or down columns: CuTe's layout of two flat modes.

    Text form ``(16,8):(8,1)``; a shape alone is numbered down columns. Raises InvalidConfig.
    """

    shape: tuple[int, int]
    stride: tuple[int, int]

    def __post_init__(self) -> None:
        if min(self.shape) < 1:
            raise InvalidConfig(f"shape {self.shape} has a mode of {min(self.shape)}; a mode has 1 or more")
        # A mode of one has no step, as CuTe prints it: equal layouts are equal values.
        rows, columns = (0 if extent == 1 else step for extent, step in zip(self.shape, self.stride, strict=True))
        if (rows, columns) not in (_steps(self.shape, "C"), _steps(self.shape, "F")):
            raise InvalidConfig(f"{self} is not numbered 0 to {self.size - 1} once each")
        object.__setattr__(self, "stride", (rows, columns))

    @classmethod
    def parse(cls, text: str) -> Strided:
        """The layout of a text form. Raises InvalidConfig."""
        match = _TEXT.fullmatch(text.replace(" ", ""))
        if match is None:
            raise InvalidConfig(f"{text.strip()!r} is not laid out in rows and columns: (ROWS,COLUMNS):(STEP,STEP)")
        shape = int(match[1]), int(match[2])
        return cls(shape, (int(match[3]), int(match[4])) if match[3] else _steps(shape, "F"))

    def __str__(self) -> str:
        return "({},{}):({},{})".format(*self.shape, *self.stride)

    @property
    def size(self) -> int:
        """How many there are."""
        return self.shape[0] * self.shape[1]

    @property
    def transposed(self) -> Strided:
        """Columns as rows."""
        return Strided(self.shape[::-1], self.stride[::-1])

    def coordinates(self) -> tuple[Integers, Integers]:
        """Row and column of number 0, 1, ..."""
        down = self.stride == _steps(self.shape, "F")
        rows, columns = np.unravel_index(np.arange(self.size), self.shape, order="F" if down else "C")
        return rows, columns


def _steps(shape: tuple[int, int], order: str) -> tuple[int, int]:
    """Strides of rows and columns without gaps: along rows in order C, down columns in order F."""
    rows, columns = shape
    down, across = (columns, 1) if order == "C" else (1, rows)
    return down if rows > 1 else 0, across if columns > 1 else 0


@dataclass(frozen=True, slots=True)
class TiledCopy:
    """Threads laid out over a tile (``threads``, ThrLayout), each with a block of values (``values``, ValLayout)."""

    threads: Strided
    values: Strided

    @classmethod
    def parse(cls, text: str) -> TiledCopy:
        """Of a text form such as ``(16,8):(8,1) x (1,8)``. Raises InvalidConfig."""
        threads, separator, values = text.partition("x")
        if not separator:
            raise InvalidConfig(f"copy {text!r} is not THREADS x VALUES, each SHAPE or SHAPE:STRIDE")
        return cls(Strided.parse(threads), Strided.parse(values))

    @classmethod
    def row_major(cls, threads: int, columns: int, vector: int) -> TiledCopy:
        """Threads along rows of ``columns`` elements, ``vector`` elements each, for operands with contiguous rows."""
        if vector < 1 or columns % vector or threads % (columns // vector):
            raise InvalidConfig(f"{threads} threads with {vector} elements each do not divide lines of {columns}")
        across = columns // vector
        return cls(Strided((threads // across, across), (across, 1)), Strided((1, vector), (0, 1)))

    @classmethod
    def column_major(cls, threads: int, rows: int, vector: int) -> TiledCopy:
        """The transposed copy, for operands with contiguous columns of ``rows`` elements."""
        return cls.row_major(threads, rows, vector).transposed

    def __str__(self) -> str:
        return f"{self.threads} x {self.values}"

    @property
    def transposed(self) -> TiledCopy:
        """The same copy of the transposed tile."""
        return TiledCopy(self.threads.transposed, self.values.transposed)

    @property
    def thread_count(self) -> int:
        return self.threads.size

    @property
    def value_count(self) -> int:
        """Values of a thread."""
        return self.values.size

    @property
    def tiler(self) -> tuple[int, int]:
        """Tiler_MN: rows and columns that one copy of all threads covers."""
        (thread_rows, thread_columns), (value_rows, value_columns) = self.threads.shape, self.values.shape
        return thread_rows * value_rows, thread_columns * value_columns

    def elements(self) -> Integers:
        """(row, column) of every value of every thread: [thread, value, 2]."""
        axes = zip(self.threads.coordinates(), self.values.coordinates(), self.values.shape, strict=True)
        return np.stack([thread[:, None] * extent + value for thread, value, extent in axes], axis=-1)

    def owner(self) -> Integers:
        """The thread of every element of the tile: [row, column]."""
        owners = np.empty(self.tiler, dtype=np.int64)
        at = self.elements()
        owners[at[..., 0], at[..., 1]] = np.arange(self.thread_count)[:, None]
        return owners

    def steps(self, rows: int, columns: int) -> Iterator[tuple[int, int]]:
        """Where this copy starts each time to cover a tile of ``rows`` by ``columns``. Raises InvalidConfig."""
        down, across = self.tiler
        if rows % down or columns % across:
            raise InvalidConfig(f"a tile of {rows}x{columns} is no multiple of the {down}x{across} of copy {self}")
        return ((row, column) for row in range(0, rows, down) for column in range(0, columns, across))

    def requests(self, rows: int, columns: int, vector: int) -> Integers:
        """(row, column) of the first element of every lane's access, ``vector`` values each: [request, lane, 2].

        A request is one instruction of one warp; the last warp may be cut short. Raises InvalidConfig where values are
        no multiple of ``vector`` or threads no multiple of a warp.
        """
        if vector < 1 or self.value_count % vector:
            raise InvalidConfig(f"{self.value_count} values of a thread in accesses of {vector}")
        if self.thread_count % WARP:
            raise InvalidConfig(f"{self.thread_count} threads are no whole warps of {WARP}")
        first = self.elements()[:, ::vector].reshape(-1, WARP, self.value_count // vector, 2)
        one = first.transpose(0, 2, 1, 3).reshape(-1, WARP, 2)
        return np.concatenate([one + np.array(step, dtype=np.int64) for step in self.steps(rows, columns)])
