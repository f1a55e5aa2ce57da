"""Loads of the operands: by TMA or by cp.async, and what the L2 cache is told of their lines."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.alignment import copied_at_once
from tirgemm.families.wgmma.planning.orientation import Orientation
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, ELEMENT_BYTES, Tile
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
        """A and B -> bytes that the producer reads at once where it copies the operand, else 0."""
        return copied_at_once(self.orientation.gemm) if self.load == names.COPY else dict.fromkeys(_OPERANDS, 0)

    @property
    def by_elements(self) -> bool:
        """Whether the producer's threads read what they copy element by element."""
        return ELEMENT_BYTES in self.copied.values()

    @property
    def copies(self) -> bool:
        return any(self.copied.values())

    def tile(self, operand: Operand) -> Tile:
        """The tile of A or B."""
        return self.left if operand == self.orientation.left_operand else self.right

    def rows_loaded(self, operand: Operand) -> Dim:
        """Rows of a slab that one block loads by TMA.

        Of A's rows, where m is a range, no more than there are, in whole core matrices: what lies outside a tensor
        takes longer to load than what lies inside once all SMs load it. A wgmma reads old data in their place, whose
        rows of D nobody stores.
        """
        gemm, tile = self.orientation.gemm, self.tile(operand)
        always_full = isinstance(gemm.m, int) or gemm.m_min > tile.rows_loaded - CORE_ROWS
        if operand == "b" or always_full or not tile.k_major or tile.peers > 1 or self.copies:
            return tile.rows_loaded
        return expr.minimum(tile.rows_loaded, expr.make("mul", expr.ceildiv(expr.M, CORE_ROWS), CORE_ROWS))

    @property
    def uses_tma(self) -> bool:
        return not all(self.copied.values())

    @property
    def tma_bytes(self) -> Dim:
        """Bytes of a stage that come by TMA, from all blocks that load for this one."""
        total: Dim = 0
        for operand, copied in self.copied.items():
            tile = self.tile(operand)
            row = tile.peers * tile.slabs * tile.width * ELEMENT_BYTES
            total = total if copied else expr.make("add", total, expr.make("mul", self.rows_loaded(operand), row))
        return total

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
