"""Orientation of a problem on the tile: which operand is wgmma's A, and which outputs run along the tile's rows."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.expr import Dim
from tirgemm.gemm import Gemm, Operand


@dataclass(frozen=True, slots=True)
class Orientation:
    """Sides of the problem as its tile has them. ``swapped``: the tile's rows run along n and its columns along m, so
    that the kernel computes D transposed."""

    gemm: Gemm
    swapped: bool

    @property
    def rows(self) -> Dim:
        """Outputs along the tile's rows."""
        return self.gemm.n if self.swapped else self.gemm.m_dim

    @property
    def columns(self) -> Dim:
        """Outputs along the tile's columns."""
        return self.gemm.m_dim if self.swapped else self.gemm.n

    @property
    def most_rows(self) -> int:
        return self.gemm.n if self.swapped else self.gemm.m_max

    @property
    def most_columns(self) -> int:
        return self.gemm.m_max if self.swapped else self.gemm.n

    @property
    def left_operand(self) -> Operand:
        """The operand whose m or n is the tile's rows: wgmma's A."""
        return "b" if self.swapped else "a"

    @property
    def right_operand(self) -> Operand:
        return "a" if self.swapped else "b"

    def k_major(self, operand: Operand) -> bool:
        """Whether k is contiguous in the operand."""
        return self.gemm.trans_b if operand == "b" else not self.gemm.trans_a
