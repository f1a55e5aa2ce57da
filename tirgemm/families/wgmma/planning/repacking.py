"""Extents of the repack kernel: the operands that TMA cannot load, blocks and turns. Integers only, no TVM."""

from __future__ import annotations

from collections.abc import Iterable

from tirgemm import expr
from tirgemm.expr import Dim, make
from tirgemm.families.common.aligned_copy import ELEMENT_BYTES, WORD, WORD_BYTES, AlignedCopy
from tirgemm.families.common.alignment import divides
from tirgemm.families.wgmma.planning.alignment import loaded_by_tma
from tirgemm.gemm import Gemm, Operand

REPACK_SYMBOL = "wgmma_repack"
REPACK_THREADS = 256
# Words of a thread whose loads are in flight together.
REPACK_WORDS = 4
# Blocks of an SM: with 64 registers a thread, half of the threads that it holds.
REPACK_BLOCKS = 4


def repacked(gemm: Gemm, operand: Operand) -> AlignedCopy | None:
    """The copy of A or B that TMA can load; None where it can load the operand itself.

    Raises InvalidGemm where the copy takes more than 16 GiB.
    """
    if gemm.align % WORD_BYTES == 0 and loaded_by_tma(gemm, operand):
        return None
    base = min(WORD, gemm.align // ELEMENT_BYTES)
    distances: list[Dim] = [gemm.leading(operand), gemm.batch_stride(operand) if gemm.batch > 1 else 0]
    vector = next(v for v in (8, 4, 2, 1) if base % v == 0 and all(divides(v, distance) for distance in distances))
    return AlignedCopy.of(gemm, operand, vector, base)


def copies(gemm: Gemm) -> tuple[AlignedCopy, ...]:
    """The copies of those of A and B that TMA cannot load."""
    operands: tuple[Operand, ...] = ("a", "b")
    return tuple(item for item in (repacked(gemm, operand) for operand in operands) if item)


def repack_grid(items: Iterable[AlignedCopy], units: int) -> Dim:
    """Blocks of the launch that copies ``items`` on ``units`` SMs: as many as run at once, fewer for little work."""
    return expr.minimum(all_turns(items), units * REPACK_BLOCKS)


def all_turns(items: Iterable[AlignedCopy]) -> Dim:
    """Turns of a block that copy ``items``."""
    total: Dim = 0
    for item in items:
        total = make("add", total, turns_of(item))
    return total


def turns_of(item: AlignedCopy) -> Dim:
    """Turns of a block that copy one operand."""
    return expr.ceildiv(item.words, REPACK_THREADS * REPACK_WORDS)
