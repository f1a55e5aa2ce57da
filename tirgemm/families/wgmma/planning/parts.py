"""Fixed split of k for invariant problems, a function of n and k alone.

Few columns leave SMs idle at small m unless k is split; a split costs at large m. On an H200, n = 576 and k = 7168 take
2.1 to 2.6 times as long unsplit at m = 32 to 64, n = 4096 no longer (records that ship with the package).
"""

from __future__ import annotations

from tirgemm.families.summation import Summation
from tirgemm.gemm import Gemm

# SMs of an H100 or H200 and the columns of a tile for few rows: so many tiles there are at small m.
_UNITS, _COLUMNS = 132, 32
# A part with less of k is mostly prologue, epilogue and addition.
_LEAST_DEPTH = 1024
_COUNTS = (8, 4, 2)
_STEP = 64


def part_count(n: int, k: int) -> int:
    """How many parts: as many as still have an SM each at small m, and enough of k."""
    tiles = -(-n // _COLUMNS)
    return next((count for count in _COUNTS if tiles * count <= _UNITS and k >= count * _LEAST_DEPTH), 1)


def invariant_summation(gemm: Gemm) -> Summation:
    """The order of every kernel of an invariant problem: that of steps of 64."""
    return summation(gemm.k, part_count(gemm.n, gemm.k), _STEP)


def summation(k: int, split: int, tile_k: int) -> Summation:
    """The order of a kernel that cuts its steps of ``tile_k`` into ``split`` parts."""
    steps = -(-k // tile_k)
    return Summation(-(-steps // split) * tile_k, steps * tile_k)
