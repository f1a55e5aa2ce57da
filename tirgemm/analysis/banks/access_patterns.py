"""Access patterns of GEMM kernels as data: which element of a shared tile every lane's access starts at.

A pattern knows rows and columns, not addresses: those come from the ``Layout`` that it is held against.
Sources: PTX ISA, "Warp-level matrix fragment" (mma, wmma) and ``ldmatrix``; the SGEMM article for z-order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tirgemm.analysis.banks.shared_access import WARP, SharedAccess
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import TiledCopy

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

MATRIX = 8  # rows and columns of ldmatrix's matrices
_PAIR = 2  # 16-bit elements in a register


@dataclass(frozen=True, eq=False)
class Pattern:
    """``rows`` and ``columns`` [request, 32] of the first element of each lane's access; ``active`` lanes, all if None.

    Arrays are not to be written to. Raises InvalidRequest where shapes differ or are no requests of 32 lanes.
    """

    name: str
    access: SharedAccess
    rows: Integers
    columns: Integers
    active: Flags | None = None

    def __post_init__(self) -> None:
        parts = [self.rows, self.columns, *([] if self.active is None else [self.active])]
        shapes = {part.shape for part in parts}
        if len(shapes) != 1 or self.rows.ndim != 2 or self.rows.shape[1] != WARP:
            raise InvalidRequest(f"pattern {self.name!r} has shapes {sorted(shapes)}; they are [requests, {WARP}]")

    @property
    def requests(self) -> int:
        return len(self.rows)

    def named(self, name: str) -> Pattern:
        """The same pattern by another name."""
        return replace(self, name=name)


def ldmatrix(rows: int, columns: int, matrices: int = 4, *, transposed: bool = False) -> Pattern:
    """ldmatrix of every fragment of a tile of 16-bit elements.

    x4 takes 16x16, x2 16 rows of 8, x1 8x8; matrices are numbered down, then across. The tile's rows are what is
    contiguous in shared memory, whatever ``transposed`` makes of them in registers. Raises InvalidRequest.
    """
    access = SharedAccess.parse(f"ldmatrix.x{matrices}{'.trans' if transposed else ''}")
    down, across = MATRIX * min(matrices, 2), MATRIX * max(1, matrices // 2)
    lanes = np.arange(WARP) % (MATRIX * matrices)
    at = _tiles(rows, columns, down, across)
    return Pattern(str(access), access, at[:, :1] + lanes % down, at[:, 1:] + lanes // down * MATRIX)


def mma_fragments(rows: int, columns: int) -> Pattern:
    """The 32-bit loads of 16x16 fragments as mma.sync has them in registers, for 16-bit elements.

    Lane l of a warp has the pairs of columns 2 (l mod 4) and on in rows l / 4 of each 8x8 quarter: what the padding
    article takes wmma's loads for.
    """
    lanes = np.arange(WARP)
    at = _tiles(rows, columns, MATRIX, MATRIX)
    access = SharedAccess("load", 4)
    return Pattern("wmma load", access, at[:, :1] + lanes // 4, at[:, 1:] + lanes % 4 * _PAIR)


def copy_store(
    copy: TiledCopy, rows: int, columns: int, access: SharedAccess | str, vector: int, *, transposed: bool = False
) -> Pattern:
    """The stores of a copy to a tile of ``rows`` by ``columns``, ``vector`` elements of a thread at a time.

    ``transposed``: element (row, column) of the copied tile is stored to row ``column`` of shared memory.
    """
    access = SharedAccess.parse(access) if isinstance(access, str) else access
    at = copy.requests(rows, columns, vector)
    row, column = (at[..., 1], at[..., 0]) if transposed else (at[..., 0], at[..., 1])
    return Pattern(f"{'transposed ' if transposed else ''}{access} by {copy}", access, row, column)


def row_reads(name: str, columns: ArrayLike, rows: Iterable[int], access: SharedAccess | str = "load.128") -> Pattern:
    """Every lane reads from its own ``columns`` [reads, 32] (or [32]) of one row after the other: simt's inner loop."""
    access = SharedAccess.parse(access) if isinstance(access, str) else access
    starts, row = np.atleast_2d(np.asarray(columns, dtype=np.int64)), np.asarray(list(rows), dtype=np.int64)
    return Pattern(
        name, access, np.repeat(row, len(starts))[:, None] + np.zeros_like(starts[:1]), np.tile(starts, (len(row), 1))
    )


def row_major_lanes(across: int) -> tuple[Integers, Integers]:
    """(down, across) of every lane, ``across`` lanes to a line."""
    lanes = np.arange(WARP, dtype=np.int64)
    return lanes // across, lanes % across


def z_order_lanes() -> tuple[Integers, Integers]:
    """(down, across) of every lane, 8 down and 4 across, in the order of the SGEMM article's z-order kernel.

    Bits 0, 3 of a lane are its place across and bits 1, 2, 4 its place down: lanes n and n ^ 2 are in one column, lanes
    n and n ^ 1 in one row.
    """
    lanes = np.arange(WARP, dtype=np.int64)
    across = lanes & 1 | lanes >> 2 & 2
    down = lanes >> 1 & 3 | lanes >> 2 & 4
    return down, across


def thread_tile(places: Integers, length: int, vector: int, apart: Sequence[int] | None = None) -> Integers:
    """Where each lane's reads of its ``length`` elements start, ``vector`` at a time: [reads, 32].

    Elements of a lane lie together, or in groups of ``vector`` that start ``apart`` elements after the first.
    """
    groups = apart if apart is not None else range(0, length, vector)
    pitch = vector if apart is not None else length
    return np.array([[int(place) * pitch + group for place in places] for group in groups], dtype=np.int64)


def _tiles(rows: int, columns: int, down: int, across: int) -> Integers:
    """The first (row, column) of every block of ``down`` by ``across``: [block, 2]. Raises InvalidRequest."""
    if rows % down or columns % across:
        raise InvalidRequest(f"a tile of {rows}x{columns} is no multiple of {down}x{across}")
    at = np.mgrid[0:rows:down, 0:columns:across].reshape(2, -1).T
    return np.asarray(at, dtype=np.int64)
