"""Loads of the operands: by TMA or by cp.async, and what the L2 cache is told of their lines."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.alignment import copy_bytes, loaded_by_tma
from tirgemm.families.wgmma.planning.orientation import Orientation
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES, Tile
from tirgemm.gemm import Operand

_OPERANDS: tuple[Operand, ...] = ("a", "b")


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
        """A and B -> bytes that the producer reads at once where it copies the operand, else 0. Both the same: a thread
        that reads elements waits for them, and tells of all its copies itself."""
        gemm, wanted = self.orientation.gemm, self.load == names.COPY
        least = {op: copy_bytes(gemm, op) for op in _OPERANDS if wanted and not loaded_by_tma(gemm, op)}
        if all(least.values()) and ELEMENT_BYTES in least.values():
            least = dict.fromkeys(least, ELEMENT_BYTES)
        return {op: least.get(op, 0) for op in _OPERANDS}

    @property
    def by_elements(self) -> bool:
        """Whether the producer's threads read what they copy element by element."""
        return ELEMENT_BYTES in self.copied.values()

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
