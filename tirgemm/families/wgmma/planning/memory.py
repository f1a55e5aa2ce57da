"""Shared memory of a block: stages of both operands, staged outputs, and barriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirgemm.errors import InvalidConfig
from tirgemm.families.wgmma.planning.tile import SLAB_BYTES, Tile
from tirgemm.families.wgmma.planning.warpgroups import MMA_M

_BARRIER_BYTES = 8
# Shared memory of an SM with tensor cores of this kind, and what the driver keeps of each block's.
_SM_BYTES, RESERVED_BYTES = 228 * 1024, 1024


def block_bytes(resident: Any) -> Any:
    """Bytes of shared memory of each of ``resident`` blocks of an SM, a number or an array (CUDA C++ Programming Guide,
    compute capability 9.0)."""
    return _SM_BYTES // resident - RESERVED_BYTES


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Bytes of a block's shared memory. ``exchanged_bytes``: sums that a block of a cluster shows its peers, in the
    memory of its stages. Raises InvalidConfig for fewer stages than one."""

    left: Tile
    right: Tile
    stages: int
    staging_bytes: int
    exchanged_bytes: int
    pingpong: bool

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise InvalidConfig(f"wgmma: stages={self.stages} is less than 1")

    @property
    def stage_bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def slack_bytes(self) -> int:
        """Shared memory behind the last stage that a wgmma on fewer than 64 rows may read beyond the rest."""
        read = (MMA_M - self.left.extent) * SLAB_BYTES if self.left.extent < MMA_M else 0
        return max(0, read - self.stages * self.right.nbytes - self.staging_bytes)

    @property
    def barriers(self) -> int:
        return 2 * self.stages + (2 if self.pingpong else 0)

    @property
    def nbytes(self) -> int:
        tiles = self.stages * self.stage_bytes + self.staging_bytes + self.slack_bytes
        return tiles + self.barriers * _BARRIER_BYTES
