"""``PanelTiling``: panels, tasks and packed operand sizes of a config.

A panel is what one register tile multiplies: ``tile_m`` rows of A, or ``tile_n`` columns of B. Packed operands are
fp32 and zero-padded in k to whole chunks; a panel beyond an edge repeats the last row or column, and its results are
not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tirgemm.config import Config
from tirgemm.expr import Dim, ceildiv, make
from tirgemm.gemm import Gemm

CHUNK = 16
"""Values of k that one packed piece of a row of A holds: one cache line of fp32."""


@dataclass(frozen=True)
class PanelTiling:
    """What every kernel of one config shares."""

    gemm: Gemm
    config: Config

    @cached_property
    def tile_m(self) -> int:
        return int(self.config["tile_m"])

    @cached_property
    def lanes(self) -> int:
        return int(self.config["lanes"])

    @cached_property
    def tile_n(self) -> int:
        return self.lanes * int(self.config["vectors"])

    @cached_property
    def chunks(self) -> int:
        """Chunks of k in all."""
        return -(-self.gemm.k // CHUNK)

    @cached_property
    def chunks_per_block(self) -> int:
        """Chunks of k that a register tile sums up before the next tile's turn."""
        block_k = int(self.config["block_k"])
        return min(self.chunks, block_k // CHUNK) if block_k else self.chunks

    @cached_property
    def k_blocks(self) -> int:
        return -(-self.chunks // self.chunks_per_block)

    @cached_property
    def panels_m(self) -> Dim:
        return ceildiv(self.gemm.m_dim, self.tile_m)

    @cached_property
    def panels_n(self) -> int:
        return -(-self.gemm.n // self.tile_n)

    @cached_property
    def divides_m(self) -> bool:
        """Whether every panel of A is whole, for every m."""
        return self.gemm.m_min == self.gemm.m_max and self.gemm.m_max % self.tile_m == 0

    @cached_property
    def divides_n(self) -> bool:
        return self.gemm.n % self.tile_n == 0

    @cached_property
    def task_panels_m(self) -> int:
        """Panels of A that one task takes."""
        most = -(-self.gemm.m_max // self.tile_m)
        return min(most, max(1, int(self.config["block_m"]) // self.tile_m))

    @cached_property
    def task_panels_n(self) -> int:
        return min(self.panels_n, max(1, int(self.config["block_n"]) // self.tile_n))

    @cached_property
    def tasks_m(self) -> Dim:
        return ceildiv(self.panels_m, self.task_panels_m)

    @cached_property
    def tasks_n(self) -> int:
        return -(-self.panels_n // self.task_panels_n)

    @cached_property
    def tasks(self) -> Dim:
        return make("mul", self.gemm.batch * self.tasks_n, self.tasks_m)

    @cached_property
    def packs_a(self) -> bool:
        return bool(self.config["pack_a"])

    @cached_property
    def packs_b(self) -> bool:
        return bool(self.config["pack_b"])

    @cached_property
    def turns_b(self) -> bool:
        """Whether register tiles read a transposed B in place, and turn it chunk by chunk."""
        return self.gemm.trans_b and not self.packs_b

    def shape_a(self) -> tuple[Dim, ...]:
        """Packed A: rows keep their run of k where A is row-major, k keeps its run of rows where it is transposed."""
        inner = (CHUNK, self.tile_m) if self.gemm.trans_a else (self.tile_m, CHUNK)
        return (self.gemm.batch, self.panels_m, self.chunks, *inner)

    def shape_b(self) -> tuple[Dim, ...]:
        """Packed B: per panel, k by columns."""
        return (self.gemm.batch, self.panels_n, self.chunks, CHUNK, self.tile_n)

    def shape_partial(self) -> tuple[Dim, ...]:
        """Sums between two blocks of k, by register tile."""
        return (self.gemm.batch, self.panels_n, self.panels_m, self.tile_m, self.tile_n)


def elements(shape: tuple[Dim, ...]) -> Dim:
    """Elements of a dense tensor of ``shape``."""
    total: Dim = 1
    for extent in shape:
        total = make("mul", extent, total)
    return total
