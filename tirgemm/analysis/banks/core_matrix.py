"""Banks of wgmma's and TMA's swizzled tiles, by core matrices of 8 rows of 16 bytes.

Source: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout": a swizzle of 128 bytes exchanges the eight
16-byte columns of rows of 128 bytes by the row's number, one of 64 the four of rows of 64 bytes by half of it, one of
32 the two of rows of 32 bytes by a quarter of it; without, a core matrix is 128 bytes in a row.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tirgemm.analysis.banks.wavefronts import analyze

# The driver's CUtensorMapSwizzle -> bytes of a row.
PITCHES = {0: 16, 1: 32, 2: 64, 3: 128}
SWIZZLES = {0: "no swizzle", 1: "32-byte swizzle", 2: "64-byte swizzle", 3: "128-byte swizzle"}
_COLUMN = 16
_ROWS = 8


@lru_cache(maxsize=8)
def conflicts(swizzle: int) -> int:
    """The most conflicts of a core matrix of a tile laid out by ``swizzle``; KeyError for none of the driver's."""
    pitch = PITCHES[swizzle]
    rows = np.arange(_ROWS)
    columns = pitch // _COLUMN
    exchange = rows * columns // _ROWS if columns > 1 else np.zeros(_ROWS, np.int64)
    most = 0
    for column in range(columns):
        addresses = np.zeros(32, np.int64)
        addresses[:_ROWS] = rows * pitch + (column ^ exchange) * _COLUMN
        most = max(most, analyze(addresses, "ldmatrix.x1").total_conflicts)
    return most


def described(swizzle: int) -> str:
    """The swizzle in words, with what it means for core matrices."""
    if swizzle not in PITCHES:
        return f"swizzle {swizzle}, which this analysis does not know"
    count = conflicts(swizzle)
    return f"{SWIZZLES[swizzle]}, core matrices {'without conflicts' if not count else f'with {count} conflicts'}"
