"""Access patterns of GEMM kernels as data: which element of a shared tile every lane's access starts at.

A pattern knows rows and columns, not addresses: those come from the ``Layout`` that it is held against.
Source: PTX ISA, ``ldmatrix``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tirgemm.analysis.banks.coalescing import Flags, Integers
from tirgemm.analysis.banks.shared_access import WARP, SharedAccess
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import TiledCopy

MATRIX = 8  # rows and columns of ldmatrix's matrices


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


def _tiles(rows: int, columns: int, down: int, across: int) -> Integers:
    """The first (row, column) of every block of ``down`` by ``across``: [block, 2]. Raises InvalidRequest."""
    if rows % down or columns % across:
        raise InvalidRequest(f"a tile of {rows}x{columns} is no multiple of {down}x{across}")
    at = np.mgrid[0:rows:down, 0:columns:across].reshape(2, -1).T
    return np.asarray(at, dtype=np.int64)
