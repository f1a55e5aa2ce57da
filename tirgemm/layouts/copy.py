"""Thread-value layouts of tiled copies: CuTe's ``make_tiled_copy`` as data.

Source: CUTLASS ``include/cute/atom/copy_atom.hpp``; "CUTLASS CuTe GEMM: TiledCopy and cp.async" for the worked
examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirgemm.errors import InvalidConfig
from tirgemm.layouts.strided import Strided

Integers = NDArray[np.int64]
WARP = 32


@dataclass(frozen=True, slots=True)
class TiledCopy:
    """Threads laid out over a tile (``threads``, ThrLayout), each with a block of values (``values``, ValLayout).

    Both are layouts of two flat modes, rows and columns, onto 0, 1, ... without gaps: the offset is the thread's or the
    value's number. Raises InvalidConfig.
    """

    threads: Strided
    values: Strided

    def __post_init__(self) -> None:
        for name, layout in (("threads", self.threads), ("values", self.values)):
            if not isinstance(layout.shape, tuple) or [type(part) for part in layout.shape] != [int, int]:
                raise InvalidConfig(f"{name} {layout} are not laid out in rows and columns")
            if layout.cosize != layout.size or not layout.injective:
                raise InvalidConfig(f"{name} {layout} are not numbered 0 to {layout.size - 1} once each")
            # A mode of one has no step, as CuTe prints it: equal copies are equal values.
            steps = tuple(0 if extent == 1 else step for extent, step in layout.modes)
            object.__setattr__(self, name, Strided(layout.shape, steps))

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
        across = _across(threads, columns, vector)
        return cls(Strided((threads // across, across), (across, 1)), Strided.compact((1, vector)))

    @classmethod
    def column_major(cls, threads: int, rows: int, vector: int) -> TiledCopy:
        """The transposed copy, for operands with contiguous columns of ``rows`` elements."""
        across = _across(threads, rows, vector)
        return cls(Strided((across, threads // across), (1, across)), Strided.compact((vector, 1)))

    def __str__(self) -> str:
        return f"{self.threads} x {self.values}"

    @property
    def transposed(self) -> TiledCopy:
        """The same copy of the transposed tile."""
        return TiledCopy(_swapped(self.threads), _swapped(self.values))

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
        (thread_rows, thread_columns), (value_rows, value_columns) = _shape(self.threads), _shape(self.values)
        return thread_rows * value_rows, thread_columns * value_columns

    @property
    def layout_tv(self) -> Strided:
        """TiledLayout_TV: from (thread, value) to the element's number in the tile, which is counted down its
        columns."""
        rows, _ = self.tiler
        value_rows, value_columns = _shape(self.values)
        threads = _numbered(self.threads, (value_rows, value_columns * rows))
        values = _numbered(self.values, (1, rows))
        return Strided((threads.shape, values.shape), (threads.stride, values.stride))

    def element(self, thread: int, value: int) -> tuple[int, int]:
        """The (row, column) of the tile that a thread's value is."""
        rows, _ = self.tiler
        number = int(self.layout_tv(thread, value))
        return number % rows, number // rows

    def elements(self) -> Integers:
        """(row, column) of every value of every thread: [thread, value, 2]."""
        rows, _ = self.tiler
        number = self.layout_tv(np.arange(self.thread_count)[:, None], np.arange(self.value_count)[None, :])
        return np.stack([number % rows, number // rows], axis=-1).astype(np.int64)

    def owner(self) -> Integers:
        """The thread of every element of the tile: [row, column]."""
        owners = np.empty(self.tiler, dtype=np.int64)
        at = self.elements()
        owners[at[..., 0], at[..., 1]] = np.arange(self.thread_count)[:, None]
        return owners

    def vector(self, row_stride: int, column_stride: int) -> int:
        """How many values from the first on lie one after the other in a matrix of these strides, for every thread."""
        at = self.elements()
        offsets = at[..., 0] * row_stride + at[..., 1] * column_stride
        steps = np.diff(offsets, axis=1)
        broken = np.flatnonzero((steps != 1).any(axis=0))
        return int(broken[0]) + 1 if broken.size else self.value_count

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


def _across(threads: int, length: int, vector: int) -> int:
    if vector < 1 or length % vector or threads % (length // vector):
        raise InvalidConfig(f"{threads} threads with {vector} elements each do not divide lines of {length}")
    return length // vector


def _shape(layout: Strided) -> tuple[int, int]:
    shape = layout.shape
    assert isinstance(shape, tuple)
    rows, columns = shape
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return rows, columns


def _numbered(layout: Strided, steps: tuple[int, int]) -> Strided:
    """From the number that ``layout`` gives to where it lies, with ``steps`` from a row and a column to the next."""
    return Strided(_shape(layout), steps).composed(layout.inverted())


def _swapped(layout: Strided) -> Strided:
    (rows, columns), (down, across) = _shape(layout), tuple(step for _, step in layout.modes)
    return Strided((columns, rows), (across, down))
