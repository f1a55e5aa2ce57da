"""Vector widths that the alignment of a problem's operands allows."""

from __future__ import annotations

from functools import lru_cache

from tirgemm.expr import Dim
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand

_ACCESS_BYTES = 16
# A line of L2.
LINE_BYTES = 128


@lru_cache(maxsize=512)
def access_width(gemm: Gemm, operand: Operand) -> int:
    """Elements of the widest aligned access along the contiguous dimension that stays inside its row: 1 to 16 bytes."""
    size = DTYPE_BYTES[gemm.operand_dtype(operand)]
    rows: list[Dim] = [gemm.matrix(operand)[1], gemm.leading(operand)]
    if gemm.batch > 1:
        rows.append(gemm.batch_stride(operand))
    width = _ACCESS_BYTES // size
    while width > 1 and (gemm.align % (width * size) or not all(divides(width, d) for d in rows)):
        width //= 2
    return width


@lru_cache(maxsize=512)
def row_alignment(gemm: Gemm, operand: Operand) -> int:
    """Bytes, at most those of a line of L2, of which the distance of the operand's rows is a multiple at every m."""
    size, leading = DTYPE_BYTES[gemm.operand_dtype(operand)], gemm.leading(operand)
    nbytes = LINE_BYTES
    while nbytes > size and not divides(nbytes // size, leading):
        nbytes //= 2
    return nbytes


def store_width(gemm: Gemm) -> int:
    """Elements of the widest access that fits D, C and bias alike: at most four, the widest vector of floats."""
    return min(4, access_width(gemm, "d"), access_width(gemm, "c") if gemm.beta else 4)


def divides(by: int, dim: Dim) -> bool:
    """Whether ``by`` divides ``dim`` at every m: a product of which one factor is divisible will do."""
    if isinstance(dim, int):
        return dim % by == 0
    return by == 1 or (dim.op == "mul" and (divides(by, dim.left) or divides(by, dim.right)))
