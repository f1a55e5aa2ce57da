"""The instruction of ``mma`` and what a warp's tile takes of the registers. Integers only."""

from __future__ import annotations

from tirgemm.families.tensorcore.tiling import Tiling
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.hardware import WARP

MMA_M, MMA_N = 16, 8
# Columns of B that one ldmatrix.x4 reads: two instructions' worth.
PAIR_N = 2 * MMA_N
# Values of a lane: of a fragment of 16 by 16, and of the sums of one instruction.
VALUES, SUMS = 8, 4
# Outputs of a lane that leave through shared memory together.
VECTOR = 4
# Addresses, counters, and what the compiler keeps beside sums and fragments; found by compiling.
_OTHERS = 48


def rows_at_once(cut: Tiling) -> int:
    """Rows of a warp's tile that its lanes cover with a vector of outputs each."""
    return max(1, WARP * VECTOR // cut.warp_n)


def registers_of(cut: Tiling, sets: int) -> int:
    """An estimate of a thread's registers: sums, ``sets`` of fragments, addresses."""
    sums = cut.warp_m * cut.warp_n // 32 * DTYPE_BYTES[cut.gemm.acc] // 4
    fragments = (cut.warp_m + cut.warp_n) // 16 * VALUES // 2
    return sums + sets * fragments + _OTHERS
