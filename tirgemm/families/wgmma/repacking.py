"""How operands that TMA cannot load are copied to rows that it can: extents, accesses, blocks. Integers only, no TVM.

The copy of an operand is (batch, rows, ld) with ld the columns rounded up to 128 bytes, a line of L2, or to 16 bytes
where columns are fewer. It is made of *words* of 16 bytes, eight elements, numbered on from row to row: as many as hold
the columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tirgemm import expr
from tirgemm.errors import InvalidGemm
from tirgemm.expr import Dim, make
from tirgemm.families.wgmma.alignment import divides, loaded_by_tma
from tirgemm.families.wgmma.tile import ELEMENT_BYTES
from tirgemm.gemm import Gemm, Operand

REPACK_SYMBOL = "wgmma_repack"
REPACK_THREADS = 256
# Words of a thread whose loads are in flight together.
REPACK_WORDS = 4
# Blocks of an SM: with 64 registers a thread, half of the threads that it holds.
REPACK_BLOCKS = 4
WORD_BYTES = 16
WORD = WORD_BYTES // ELEMENT_BYTES
# Elements of a line of L2.
LINE = 128 // ELEMENT_BYTES
# Words are counted in int32, with room for the last blocks to count on beyond the end.
MAX_COPY_BYTES = 2**34


@dataclass(frozen=True, slots=True)
class Repacked:
    """One operand and its copy. Sizes are in elements.

    ``source_ld`` and ``source_stride`` say where rows and matrices lie, ``ld`` and ``stride`` where their copies do.
    ``elements`` are those of the copy, padding included. ``vector`` (1, 2, 4 or 8) divides every place in memory at
    which a row starts, counted from an address of 16 bytes; ``base`` (1, 2, 4 or 8) divides the place of the first.
    """

    operand: Operand
    rows: Dim
    columns: Dim
    batch: int
    source_ld: Dim
    source_stride: Dim
    ld: Dim
    stride: Dim
    elements: Dim
    vector: int
    base: int

    @property
    def name(self) -> str:
        """The workspace that holds the copy."""
        return packed(self.operand)

    @property
    def nbytes(self) -> Dim:
        """Bytes of the workspace."""
        return make("mul", self.elements, ELEMENT_BYTES)

    @property
    def row_words(self) -> Dim:
        """Words of a row of the copy."""
        return expr.ceildiv(self.columns, WORD)

    @property
    def dense(self) -> bool:
        """Whether a row's words fill it, so that word i starts at element 8 i."""
        return self.ld == make("mul", self.row_words, WORD)

    @property
    def words(self) -> Dim:
        """Words of the copy."""
        return make("mul", make("mul", self.rows, self.row_words), self.batch)

    @property
    def span(self) -> Dim:
        """Elements from the operand's first to one past its last: what may be read."""
        last_row = make("mul", make("sub", self.rows, 1), self.source_ld)
        last_matrix = make("mul", self.source_stride, self.batch - 1) if self.batch > 1 else 0
        return make("add", make("add", last_matrix, last_row), self.columns)

    @property
    def rows_even(self) -> bool:
        """Whether rows are one distance apart throughout, the last of a matrix and the first of the next too."""
        return self.batch == 1 or self.source_stride == make("mul", self.rows, self.source_ld)

    @property
    def turns(self) -> Dim:
        """Turns of a block that copy the operand."""
        return expr.ceildiv(self.words, REPACK_THREADS * REPACK_WORDS)


def packed(operand: Operand) -> str:
    """The workspace of the copy of ``operand``, which is the name of its pointer too."""
    return f"{operand}_packed"


def repacked(gemm: Gemm, operand: Operand) -> Repacked | None:
    """The copy of A or B that TMA can load; None where it can load the operand itself.

    Raises InvalidGemm where the copy takes more than 16 GiB.
    """
    if gemm.align % WORD_BYTES == 0 and loaded_by_tma(gemm, operand):
        return None
    rows, columns = gemm.matrix(operand)
    source_ld = gemm.leading(operand)
    source_stride: Dim = gemm.batch_stride(operand) if gemm.batch > 1 else 0
    # Rows that start in the middle of a line of L2 cost the kernel half as many lines again.
    unit = LINE if expr.evaluate(columns, gemm.m_max) >= LINE else WORD
    ld = make("mul", expr.ceildiv(columns, unit), unit)
    stride = make("mul", rows, ld)
    elements = make("mul", stride, gemm.batch)
    nbytes = ELEMENT_BYTES * expr.evaluate(elements, gemm.m_max)
    if nbytes > MAX_COPY_BYTES:
        raise InvalidGemm(
            f"a copy of {operand.upper()} with aligned rows takes {nbytes} bytes; the limit is {MAX_COPY_BYTES}"
        )
    base = min(WORD, gemm.align // ELEMENT_BYTES)
    vector = next(v for v in (8, 4, 2, 1) if base % v == 0 and divides(v, source_ld) and divides(v, source_stride))
    return Repacked(operand, rows, columns, gemm.batch, source_ld, source_stride, ld, stride, elements, vector, base)


def copies(gemm: Gemm) -> tuple[Repacked, ...]:
    """The copies of those of A and B that TMA cannot load."""
    operands: tuple[Operand, ...] = ("a", "b")
    return tuple(item for item in (repacked(gemm, operand) for operand in operands) if item)


def repack_grid(items: Iterable[Repacked], units: int) -> Dim:
    """Blocks of the launch that copies ``items`` on ``units`` SMs: as many as run at once, fewer for little work."""
    return expr.minimum(all_turns(items), units * REPACK_BLOCKS)


def all_turns(items: Iterable[Repacked]) -> Dim:
    """Turns of a block that copy ``items``."""
    total: Dim = 0
    for item in items:
        total = make("add", total, item.turns)
    return total
