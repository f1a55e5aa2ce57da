"""A block's tile in WMMA fragments, and what it takes of registers and shared memory. Integers only."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.families.tensorcore.tiling import Tiling
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.hardware import WARP

# Rows, columns and depth of a fragment.
FRAGMENT = 16
# How many times larger a buffer may be than one that takes its place.
_MOST_SHARED_BY = 16
# Registers of a factor's fragment; what the compiler keeps beside sums and factors, found by compiling.
_FACTOR = 4
_OTHERS = 40


@dataclass(frozen=True, slots=True)
class WmmaTiling(Tiling):
    """A warp has ``fragments_m x fragments_n`` accumulators of 16 x 16, and ``sets`` of factors to fill them from."""

    sets: int

    @property
    def fragments_m(self) -> int:
        return self.warp_m // FRAGMENT

    @property
    def fragments_n(self) -> int:
        return self.warp_n // FRAGMENT

    @property
    def staged_bytes(self) -> int:
        """Bytes of the sums in shared memory: one row of fragments of every warp, in the accumulator's dtype."""
        return self.threads // WARP * FRAGMENT * self.staged_pitch * DTYPE_BYTES[self.gemm.acc]

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory: the stages; staged sums take their place, unless they are much smaller.

        So TVM lays them out (``MergeSharedMemoryAllocations``): it does not give a small buffer a large one's place.
        """
        tiles = self.stages * (self.a.nbytes + self.b.nbytes)
        if tiles > _MOST_SHARED_BY * self.staged_bytes:
            return tiles + self.staged_bytes
        return max(tiles, self.staged_bytes)


def registers_of(warp_m: int, warp_n: int, acc: str, sets: int) -> int:
    """An estimate of a thread's registers: sums, ``sets`` of factors, addresses."""
    sums = warp_m * warp_n // WARP * DTYPE_BYTES[acc] // 4
    factors = (warp_m + warp_n) // FRAGMENT * _FACTOR
    return sums + sets * factors + _OTHERS
