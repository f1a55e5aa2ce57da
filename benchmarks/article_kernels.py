"""The shared-memory accesses of the articles' kernels as data, and what the bank model says of them.

The padding article: a 128x256x32 tile of fp16, its rows plain, padded by 8 halves or permuted. The SGEMM article: the
fp32 kernel with float4 and A transposed, 128x128x8 with 256 threads of 8x8 elements, at m = n = k = 4096.
Source of the fragments: PTX ISA, "Warp-level matrix fragment" (mma, wmma).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tirgemm.analysis.banks import access_patterns as patterns
from tirgemm.analysis.banks.access_patterns import Pattern
from tirgemm.analysis.banks.coalescing import Integers
from tirgemm.analysis.banks.conflict_proof import prove
from tirgemm.analysis.banks.shared_access import WARP, SharedAccess
from tirgemm.layouts import Layout, TiledCopy

# -- the padding article ---------------------------------------------------------------------------------------------

_PAIR = 2  # 16-bit elements in a register
THREADS = 256
A_TILE = (128, 32)


def padding_layouts() -> dict[str, Layout]:
    """The three ways to lay out the 128x32 tile of A."""
    rows, columns = A_TILE
    return {
        "no padding": Layout.plain(rows, columns, 2),
        "8 halves of padding": Layout.padded(rows, columns, 2, 8),
        "permuted": Layout.tma(rows, columns, 2, 64),
    }


def padding_patterns() -> dict[str, Pattern]:
    """Its loads as the article takes them, as ldmatrix, and its stores of each width: four lanes to a row of 64
    bytes."""
    rows, columns = A_TILE
    stores = {
        f"store of {16 * vector} bits": patterns.copy_store(
            TiledCopy.row_major(THREADS, columns, vector), rows, columns, f"store.{16 * vector}", vector
        )
        for vector in (8, 4, 2)
    }
    return {
        "wmma load of 32 bits": mma_fragments(rows, columns),
        "ldmatrix.x4": patterns.ldmatrix(rows, columns),
        **stores,
    }


def mma_fragments(rows: int, columns: int) -> Pattern:
    """The 32-bit loads of 16x16 fragments as mma.sync has them in registers, for 16-bit elements.

    Lane l of a warp has the pairs of columns 2 (l mod 4) and on in rows l / 4 of each 8x8 quarter: what the padding
    article takes wmma's loads for.
    """
    lanes, quarters = np.arange(WARP), patterns.ldmatrix(rows, columns, 1)
    access = SharedAccess("load", 4)
    return Pattern("wmma load", access, quarters.rows[:, :1] + lanes // 4, quarters.columns[:, :1] + lanes % 4 * _PAIR)


def bank_groups(layout: Layout) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    """The article's table: groups of four threads of the first load, and their words and banks, first and last each."""
    pattern = mma_fragments(layout.rows, layout.columns)
    words = layout.byte_offset(pattern.rows[0], pattern.columns[0]) // 4
    rows = []
    for first in range(0, 32, 4):
        group = words[first : first + 4]
        total, inner = (int(group[0]), int(group[-1])), (int(group[0]) % 32, int(group[-1]) % 32)
        rows.append((f"{first}~{first + 3}", total, inner))
    return rows


# -- the SGEMM article -----------------------------------------------------------------------------------------------

SIZE = 4096
BLOCK_M = BLOCK_N = 128
BLOCK_K = 8
THREAD_TILE = 8
VECTOR = 4
WARPS = 8


@dataclass(frozen=True, slots=True)
class SgemmKernel:
    """One form of the float4 kernel. ``pad``: floats after each row of A. ``lanes``: a warp's threads in rows of 16
    (2x16), or in z-order (8x4). ``apart``: whether a thread's 8 elements are two groups of 4, half a tile apart.
    """

    name: str
    pad: int
    lanes: str
    apart: bool


# float4 is the code that the article prints, z-order its z_lishaoxia kernel; the others follow from what the text says.
SGEMM_KERNELS = (
    SgemmKernel("float4", 0, "2x16", False),
    SgemmKernel("float4, BM + 4", 4, "2x16", False),
    SgemmKernel("two groups of 4", 0, "2x16", True),
    SgemmKernel("two groups of 4, BM + 4", 4, "2x16", True),
    SgemmKernel("z-order", 0, "z-order", False),
    SgemmKernel("z-order, BM + 4", 4, "z-order", False),
)


@dataclass(frozen=True, slots=True)
class SgemmCounts:
    """Requests, wavefronts and conflicts of the whole kernel, loads and stores."""

    loads: int
    load_wavefronts: int
    load_conflicts: int
    stores: int
    store_wavefronts: int
    store_conflicts: int


# What ncu counted on an RTX 3090 according to the article: its two tables, in their order. None: the cell is blank.
ARTICLE_TABLES = (
    SgemmCounts(134_217_728, 402_657_486, 0, 20_971_520, 50_331_648, 16_777_216),
    SgemmCounts(134_217_728, 268_441_315, 0, 20_971_520, 33_554_432, 0),
)


def sgemm_tiles(kernel: SgemmKernel) -> tuple[Layout, Layout]:
    """The shared tiles of A, transposed, and B."""
    return Layout.padded(BLOCK_K, BLOCK_M, 4, kernel.pad), Layout.plain(BLOCK_K, BLOCK_N, 4)


def sgemm_loads(kernel: SgemmKernel) -> tuple[Pattern, Pattern]:
    """The float4 reads of A and of B of all warps of a block in one step of k."""
    across = 16 if kernel.lanes == "2x16" else 4
    down_lanes, across_lanes = row_major_lanes(16) if kernel.lanes == "2x16" else z_order_lanes()
    down = 32 // across
    warps_across = BLOCK_N // THREAD_TILE // across
    starts_a, starts_b = [], []
    for warp in range(WARPS):
        rows = down_lanes + warp // warps_across * down
        columns = across_lanes + warp % warps_across * across
        starts_a.append(_starts(rows, BLOCK_M, kernel.apart))
        starts_b.append(_starts(columns, BLOCK_N, kernel.apart))
    return (
        row_reads("float4 read of A", np.concatenate(starts_a), range(BLOCK_K)),
        row_reads("float4 read of B", np.concatenate(starts_b), range(BLOCK_K)),
    )


def _starts(places: Integers, length: int, apart: bool) -> Integers:
    return thread_tile(places, THREAD_TILE, VECTOR, (0, length // 2) if apart else None)


def sgemm_stores() -> tuple[Pattern, Pattern]:
    """The stores of a step: A transposed, a float at a time, two threads to a row of 8; B by float4."""
    a = patterns.copy_store(
        TiledCopy.row_major(WARPS * 32, BLOCK_K, VECTOR), BLOCK_M, BLOCK_K, "store.32", 1, transposed=True
    )
    b = patterns.copy_store(TiledCopy.row_major(WARPS * 32, BLOCK_N, VECTOR), BLOCK_K, BLOCK_N, "store.128", VECTOR)
    return a.named("transposed store of A"), b.named("float4 store of B")


def sgemm_counts(kernel: SgemmKernel) -> SgemmCounts:
    """What the whole kernel counts at m = n = k = ``SIZE``, a multiple of the tile."""
    tiles, times = sgemm_tiles(kernel), (SIZE // BLOCK_M) * (SIZE // BLOCK_N) * (SIZE // BLOCK_K)
    counts = []
    for accesses in (sgemm_loads(kernel), sgemm_stores()):
        reports = [prove(tile, pattern, "sm_86").report for tile, pattern in zip(tiles, accesses, strict=True)]
        counts += [
            times * sum(report.requests for report in reports),
            times * sum(report.total_wavefronts for report in reports),
            times * sum(report.total_conflicts for report in reports),
        ]
    return SgemmCounts(*counts)


def fits(counts: SgemmCounts, table: SgemmCounts, tolerance: float = 1e-4) -> bool:
    """Whether counts are a table's but for ``tolerance`` of the wavefronts, which ncu's other arbitration adds."""
    exact = ("loads", "load_conflicts", "stores", "store_conflicts")
    return all(getattr(counts, name) == getattr(table, name) for name in exact) and all(
        abs(getattr(counts, name) - getattr(table, name)) <= tolerance * getattr(table, name)
        for name in ("load_wavefronts", "store_wavefronts")
    )


def row_reads(name: str, columns: ArrayLike, rows: Iterable[int], access: SharedAccess | str = "load.128") -> Pattern:
    """Every lane reads from its own ``columns`` [reads, 32] (or [32]) of one row after the other: simt's inner loop."""
    access = SharedAccess.parse(access) if isinstance(access, str) else access
    starts, row = np.atleast_2d(np.asarray(columns, dtype=np.int64)), np.asarray(list(rows), dtype=np.int64)
    return Pattern(
        name, access, np.repeat(row, len(starts))[:, None] + np.zeros_like(starts[:1]), np.tile(starts, (len(row), 1))
    )


def row_major_lanes(across: int) -> tuple[Integers, Integers]:
    """(down, across) of every lane, ``across`` lanes to a line."""
    lanes = np.arange(WARP, dtype=np.int64)
    return lanes // across, lanes % across


def z_order_lanes() -> tuple[Integers, Integers]:
    """(down, across) of every lane, 8 down and 4 across, in the order of the SGEMM article's z-order kernel.

    Bits 0, 3 of a lane are its place across and bits 1, 2, 4 its place down: lanes n and n ^ 2 are in one column, lanes
    n and n ^ 1 in one row.
    """
    lanes = np.arange(WARP, dtype=np.int64)
    across = lanes & 1 | lanes >> 2 & 2
    down = lanes >> 1 & 3 | lanes >> 2 & 4
    return down, across


def thread_tile(places: Integers, length: int, vector: int, apart: Sequence[int] | None = None) -> Integers:
    """Where each lane's reads of its ``length`` elements start, ``vector`` at a time: [reads, 32].

    Elements of a lane lie together, or in groups of ``vector`` that start ``apart`` elements after the first.
    """
    groups = apart if apart is not None else range(0, length, vector)
    pitch = vector if apart is not None else length
    return np.array([[int(place) * pitch + group for place in places] for group in groups], dtype=np.int64)
