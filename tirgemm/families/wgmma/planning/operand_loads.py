"""Loads of the operands: by TMA or by cp.async, and what the L2 cache is told of their lines."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.alignment import copy_bytes, loaded_by_tma, row_classes
from tirgemm.families.wgmma.planning.orientation import Orientation
from tirgemm.families.wgmma.planning.tile import Tile
from tirgemm.gemm import Operand


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Order in which ``count`` rows of an operand lie in a stage: class by class, each of every ``classes``-th row."""

    count: int
    classes: int

    @property
    def of_class(self) -> int:
        """Rows of one class."""
        return self.count // self.classes


@dataclass(frozen=True, slots=True)
class OperandLoads:
    """Loads of both operands' tiles."""

    orientation: Orientation
    left: Tile
    right: Tile
    load: str
    eviction: str

    @property
    def copied(self) -> dict[Operand, int]:
        """A and B -> bytes of one cp.async where the producer copies it so, else 0."""
        gemm, wanted = self.orientation.gemm, self.load == names.COPY
        return {op: copy_bytes(gemm, op) if wanted and not loaded_by_tma(gemm, op) else 0 for op in ("a", "b")}

    @property
    def classes(self) -> dict[Operand, int]:
        """A and B -> maps by which its rows are loaded, each of every so many of them; 1 for rows as they lie."""
        gemm, wanted = self.orientation.gemm, self.load == names.STRIDED
        return {op: max(1, row_classes(gemm, op)) if wanted else 1 for op in ("a", "b")}

    @property
    def left_rows(self) -> RowOrder:
        """The order of the left operand's rows in a stage."""
        return RowOrder(self.left.rows, self.classes[self.orientation.left_operand])

    @property
    def right_rows(self) -> RowOrder:
        return RowOrder(self.right.rows, self.classes[self.orientation.right_operand])

    @property
    def copies(self) -> bool:
        return any(self.copied.values())

    @property
    def tma_bytes(self) -> int:
        """Bytes of a stage that come by TMA."""
        copied = self.copied
        left, right = copied[self.orientation.left_operand], copied[self.orientation.right_operand]
        return (0 if left else self.left.nbytes) + (0 if right else self.right.nbytes)

    def policy(self, operand: Operand) -> str:
        """Eviction policy of an operand's lines in L2: the larger operand is read through, the smaller one again and
        again."""
        gemm = self.orientation.gemm
        larger: Operand = "b" if gemm.n >= gemm.m_max else "a"
        told = {names.NORMAL: (), names.EVICT_BOTH: (names.EVICT_FIRST, names.EVICT_LAST)}.get(
            self.eviction, (self.eviction,)
        )
        wanted = names.EVICT_FIRST if operand == larger else names.EVICT_LAST
        return wanted if wanted in told else ""
