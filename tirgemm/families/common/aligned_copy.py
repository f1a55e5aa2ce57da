"""A copy of A or B with aligned rows: extents and strides. Integers only, no TVM.

The copy of an operand is (batch, rows, ld) with ld the columns rounded up to 128 bytes, a line of L2, or to 16 bytes
where columns are fewer. It is made of *words* of 16 bytes, eight elements, numbered on from row to row: as many as hold
the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm import expr
from tirgemm.errors import InvalidGemm
from tirgemm.expr import Dim, make
from tirgemm.gemm import Gemm, Operand

ELEMENT_BYTES = 2
WORD_BYTES = 16
WORD = WORD_BYTES // ELEMENT_BYTES
# Elements of a line of L2.
LINE = 128 // ELEMENT_BYTES
# Words are counted in int32, with room for the last blocks to count on beyond the end.
MAX_COPY_BYTES = 2**34


@dataclass(frozen=True, slots=True)
class AlignedCopy:
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

    @classmethod
    def of(cls, gemm: Gemm, operand: Operand, vector: int, base: int) -> AlignedCopy:
        """The copy of A or B. Raises InvalidGemm where it takes more than 16 GiB."""
        rows, columns = gemm.matrix(operand)
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
        source_ld = gemm.leading(operand)
        return cls(operand, rows, columns, gemm.batch, source_ld, source_stride, ld, stride, elements, vector, base)

    @property
    def name(self) -> str:
        """The workspace that holds the copy, which is the name of its pointer too."""
        return f"{self.operand}_packed"

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
