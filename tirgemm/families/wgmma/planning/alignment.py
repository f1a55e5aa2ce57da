"""Alignment of operands: which of them TMA can load and store, and the widths of other accesses."""

from __future__ import annotations

from tirgemm.families.common.alignment import LINE_BYTES, divides, row_alignment
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand

_INPUTS: tuple[Operand, ...] = ("a", "b")
SECTOR_BYTES = 32
# k up to which copies by elements were the fastest of some problem on an H200.
_MOST_K_BY_ELEMENTS = 128


def pairs(gemm: Gemm) -> bool:
    """Whether every even column of C, D and the bias starts a word of two elements that is aligned and inside."""
    size = 2 * DTYPE_BYTES[gemm.out]
    return gemm.n % 2 == 0 and gemm.align % size == 0 and all(_multiple(gemm, op, 2) for op in _written(gemm))


def stored_by_tma(gemm: Gemm) -> bool:
    """Whether TMA can store D: rows of whole 16 bytes, rows and matrices 16 bytes apart.

    Rows that end within 16 bytes are written beyond their end, as an H200 showed: what lies there may be another's.
    """
    size = DTYPE_BYTES[gemm.out]
    whole = gemm.n % (16 // size) == 0
    return whole and gemm.align % 16 == 0 and _multiple(gemm, "d", 16 // size)


def loaded_by_tma(gemm: Gemm, operand: Operand) -> bool:
    """Whether TMA can load A or B: base, rows and matrices 16 bytes apart."""
    return gemm.align % 16 == 0 and _multiple(gemm, operand, 16 // DTYPE_BYTES[gemm.dtype])


def loaded_alignment(gemm: Gemm, operand: Operand) -> int:
    """Bytes, at most those of a line of L2, to which the rows of A or B are aligned that TMA loads. Copies to aligned
    rows are to lines."""
    return row_alignment(gemm, operand) if loaded_by_tma(gemm, operand) else LINE_BYTES


def misaligned_to_lines(gemm: Gemm) -> bool:
    """Whether TMA loads rows of A or B that are not aligned to the lines of L2."""
    return any(loaded_alignment(gemm, operand) < LINE_BYTES for operand in _INPUTS)


def copy_bytes(gemm: Gemm, operand: Operand) -> int:
    """Bytes of A or B that a thread copies at once: those of the widest cp.async that suits every row, which none
    reaches beyond, 8 or 4; without one 2, where k is short: elements are waited for in every step of k. Else 0, as
    where the distance of rows is known only at the call."""
    size, columns = DTYPE_BYTES[gemm.dtype], gemm.matrix(operand)[1]
    for nbytes in (8, 4):
        count = nbytes // size
        if count > 1 and gemm.align % nbytes == 0 and divides(count, columns) and _multiple(gemm, operand, count):
            return nbytes
    return size if gemm.k <= _MOST_K_BY_ELEMENTS and isinstance(gemm.leading(operand), int) else 0


def copied_at_once(gemm: Gemm) -> dict[Operand, int]:
    """A and B -> bytes that a thread copies at once of an operand that TMA cannot load, else 0. Both the same where one
    is read by elements: a thread that reads elements waits for them, and tells of all its copies itself."""
    odd: dict[Operand, int] = {op: copy_bytes(gemm, op) for op in _INPUTS if not loaded_by_tma(gemm, op)}
    if all(odd.values()) and ELEMENT_BYTES in odd.values():
        odd = dict.fromkeys(odd, ELEMENT_BYTES)
    return {op: odd.get(op, 0) for op in _INPUTS}


def _written(gemm: Gemm) -> tuple[Operand, ...]:
    return ("d", "c") if gemm.beta else ("d",)


def _multiple(gemm: Gemm, operand: Operand, of: int) -> bool:
    dims = [gemm.leading(operand), *([gemm.batch_stride(operand)] if gemm.batch > 1 else [])]
    return all(divides(of, dim) for dim in dims)
