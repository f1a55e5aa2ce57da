"""Loads of the operands: by TMA or by cp.async, and what the L2 cache is told of their lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tirgemm.expr import Dim, make
from tirgemm.families.wgmma.planning import names
from tirgemm.families.wgmma.planning.alignment import copied_at_once
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

    def outputs_along(self, operand: Operand) -> Dim:
        """Outputs along the side of D that the operand's tiles cut."""
        return self.orientation.rows if self._is_left(operand) else self.orientation.columns

    def outputs_loaded(self, operand: Operand) -> int | None:
        """Outputs along that side that are loaded of every tile: all, or those inside D; None where tiles differ, or m
        is a range.

        What is outside is not loaded: TMA takes longer for rows outside a tensor than for those inside. A wgmma reads
        old data in its place, whose outputs nobody stores. Where tiles of both operands are shared all is loaded: a
        block that awaits nothing from some of its peers could release a stage to them twice before others do once.
        """
        outputs, extent = self.outputs_along(operand), self.tile(operand).extent
        if self.left.peers > 1 and self.right.peers > 1:
            return extent
        # Blocks that share the other operand's tile have tiles side by side.
        beside = (self.right if self._is_left(operand) else self.left).peers
        if not isinstance(outputs, int):
            return None
        if outputs % (extent * beside) == 0:
            return extent
        return outputs if outputs < extent and beside == 1 else None

    def rows_loaded(self, operand: Operand) -> int:
        """Rows of a slab that one block loads by TMA of a tile that is inside, or of the only one."""
        tile, loaded = self.tile(operand), self.outputs_loaded(operand)
        return loaded if tile.k_major and tile.peers == 1 and loaded is not None else tile.rows_loaded

    def edge_rows(self, operand: Operand) -> Dim:
        """Rows of a slab that a block loads where its part of the tile is inside by some rows and not by all; 0 where
        no part is."""
        tile, outputs = self.tile(operand), self.outputs_along(operand)
        if not tile.k_major or self.copied[operand] or self.outputs_loaded(operand) == tile.extent:
            return 0
        if not isinstance(outputs, int):
            # A box has a row at least. Where m is a multiple nothing is loaded by it.
            return make("max", make("mod", outputs, tile.rows_loaded), 1)
        return outputs % self.rows_loaded(operand)

    def tma_bytes(self, operand: Operand, inside: Any, ceildiv: Callable[[Any, int], Any]) -> Any:
        """Bytes that come by TMA, from all blocks that load for this one, of a tile of which so many outputs are
        ``inside``: an integer or a TIR expression, which ``ceildiv`` divides and rounds up."""
        tile = self.tile(operand)
        if self.copied[operand]:
            return 0
        if tile.k_major:
            return inside * (tile.slabs * tile.width * ELEMENT_BYTES)
        return ceildiv(inside, tile.width) * (tile.slab * ELEMENT_BYTES)

    def _is_left(self, operand: Operand) -> bool:
        return operand == self.orientation.left_operand

    @property
    def uses_tma(self) -> bool:
        return not all(self.copied.values())

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
