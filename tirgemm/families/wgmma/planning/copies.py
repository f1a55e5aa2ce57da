"""Thread mapping of the copying producer: which thread copies what of an operand's tile, and where to. Integers only.

A copy is 8 or 4 bytes of a row, as wide as the base, the rows and the matrices of the operand are aligned and rows are
long; of rows that are not, 8 bytes that are read element by element. They lie in a stage as TMA would have written
them: see ``tile.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tirgemm.expr import Dim
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, ELEMENT_BYTES, UNIT, Tile, permuted
from tirgemm.gemm import Operand

if TYPE_CHECKING:
    from tirgemm.families.wgmma.planning.plan import Plan

# Threads that copy: one warpgroup.
COPYING_THREADS = 128
# Bytes of a copy whose elements are read one by one.
_GATHERED_BYTES = 8


class Arithmetic(NamedTuple):
    """What integers and TIR expressions spell differently: one of two by a condition."""

    choose: Callable[[Any, Any, Any], Any]


INTEGERS = Arithmetic(lambda condition, yes, no: yes if condition else no)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one stage of ``tile``, ``nbytes`` each, by 128 threads.

    A slab is copied in passes of ``rows_at_once`` whole rows; a thread copies the same columns of every one.
    ``beyond_rows``, ``beyond_columns``: tiles may reach beyond the matrix's last row, its last column; a copy does in
    part only ``by_elements``. Arguments of type Any are integers or TIR expressions.
    """

    tile: Tile
    nbytes: int
    beyond_rows: bool
    beyond_columns: bool
    by_elements: bool = False

    @property
    def elements(self) -> int:
        """Elements of a copy."""
        return self.nbytes // ELEMENT_BYTES

    @property
    def row_threads(self) -> int:
        """Threads that copy one row of a slab."""
        return self.tile.width // self.elements

    @property
    def rows_at_once(self) -> int:
        return COPYING_THREADS // self.row_threads

    @property
    def passes(self) -> int:
        """Passes over one slab. Always whole: a slab's rows are a multiple of 8, or of 64 where rows are narrow."""
        return self.tile.rows // self.rows_at_once

    @property
    def phases(self) -> int:
        """Passes until a thread's rows are swizzled as they were: TMA's pattern repeats every 8 rows."""
        return max(1, CORE_ROWS // self.rows_at_once)

    def row(self, thread: Any) -> Any:
        """The thread's row of the first pass over a slab."""
        return thread // self.row_threads

    def column(self, thread: Any) -> Any:
        """The first of the thread's columns of a slab."""
        return thread % self.row_threads * self.elements

    def to(self, thread: Any, phase: int) -> Any:
        """Bytes from a slab's start to where the thread's copy number ``phase`` goes."""
        row, place = self.row(thread) + phase * self.rows_at_once, thread % self.row_threads * self.nbytes
        units_of_row = self.tile.width * ELEMENT_BYTES // UNIT
        unit = permuted(row, place // UNIT, units_of_row)
        return (row * units_of_row + unit) * UNIT + place % UNIT

    def further(self, slab: int, number: int) -> int:
        """Bytes from the thread's copy number ``number % phases`` of the first slab to number ``number`` of
        ``slab``."""
        rows = number // self.phases * self.phases * self.rows_at_once
        return (slab * self.tile.slab + rows * self.tile.width) * ELEMENT_BYTES

    def source(self, slab: int, number: int, ld: int) -> int:
        """Elements in memory from the thread's first of the tile to those of its copy number ``number`` of ``slab``."""
        return number * self.rows_at_once * ld + slab * self.tile.width

    def size(self, rows: Any, columns: Any, slab: int, number: int, arithmetic: Arithmetic = INTEGERS) -> Any:
        """Bytes of a copy that lie inside the matrix, of which ``rows`` and ``columns`` remain from the thread's on."""
        size: Any = self.nbytes
        if self.beyond_columns:
            left = columns - slab * self.tile.width
            if self.by_elements:
                size = arithmetic.choose(left < self.elements, left * ELEMENT_BYTES, size)
            size = arithmetic.choose(columns > slab * self.tile.width, size, 0)
        if self.beyond_rows:
            size = arithmetic.choose(rows > number * self.rows_at_once, size, 0)
        return size


def copies_of(plan: Plan, operand: Operand) -> Copies:
    """How ``plan`` copies an operand that it copies."""
    left = operand == plan.orientation.left_operand
    tile, together = (plan.left, plan.cluster_m) if left else (plan.right, plan.cluster_n)
    rows, columns = plan.gemm.matrix(operand)
    # A cluster's tiles may lie outside altogether.
    outer = tile.extent * together
    row_step, column_step = (outer, tile.tile_k) if tile.k_major else (tile.tile_k, outer)
    by_elements = plan.loads.by_elements
    nbytes = _GATHERED_BYTES if by_elements else plan.loads.copied[operand]
    beyond_columns = _overhangs(columns, column_step) or tile.overhangs
    return Copies(tile, nbytes, _overhangs(rows, row_step), beyond_columns, by_elements)


def _overhangs(size: Dim, step: int) -> bool:
    return not isinstance(size, int) or size % step != 0
