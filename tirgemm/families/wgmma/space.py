"""The knobs of ``wgmma`` and their choices for a problem."""

from __future__ import annotations

from tirgemm.config import Knob, Space, Value, up_to
from tirgemm.device import Device
from tirgemm.families.wgmma.planning.alignment import copy_bytes, loaded_by_tma, misaligned_to_lines, stored_by_tma
from tirgemm.families.wgmma.planning.names import (
    BLOCK,
    CLUSTER,
    COOPERATIVE,
    COPY,
    DIRECT,
    EVICT_BOTH,
    EVICT_FIRST,
    EVICT_LAST,
    KERNEL,
    NORMAL,
    ORDERS,
    PINGPONG,
    REPACK,
    STAGED,
    TMA,
)
from tirgemm.families.wgmma.planning.parts import invariant_summation, part_count, summation
from tirgemm.families.wgmma.planning.tile import ELEMENT_BYTES
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand

TILES_M = (64, 128, 192, 256)
TILES_N = (
    *(8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 104, 112, 120, 128),
    *(136, 144, 152, 160, 168, 176, 184, 192, 200, 208, 224, 240, 256),
)
TILES_K = (64, 128)
_STAGES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12)
_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32, 48, 64, 96, 128)
GROUPS = (1, 4, 8, 16)
# A part of a split with fewer steps of k than this is mostly prologue and epilogue.
LEAST_STEPS = 4
_MEANINGS = {
    "tile_m": "rows of a tile, which one thread block computes",
    "tile_n": "columns of a tile",
    "tile_k": "elements of k in one step of the main loop",
    "stages": "tiles of A and B in shared memory: one is multiplied while the others are on their way",
    "schedule": "warpgroups that multiply share a tile (cooperative), or alternate on tiles of their own (pingpong)",
    "resident": "blocks that share an SM",
    "cluster_m": "blocks that share tiles of the right operand by multicast",
    "cluster_n": "blocks that share tiles of the left operand by multicast",
    "swap": "1: D is computed transposed, rows of a tile along n and its columns along m",
    "split": "parts of k",
    "reduction": "the parts of k are added in a cluster's shared memory (cluster), by a second kernel (kernel), or in "
    "the registers of one block that computes them in turn (block)",
    "load": "operands come by TMA (tma), by TMA after a pass that aligns their rows (repack), or by threads (copy)",
    "epilogue": "D leaves by TMA (tma), through shared memory by rows (staged), or from the registers (direct)",
    "order": "tiles that are neighbours along the tile's rows (m) or columns (n) run together",
    "group": "tiles along that order before the next ones across",
    "l2_promotion": "bytes that an L2 miss of A or B fetches: as asked (0), 128 (2) or 256 (3)",
    "eviction": "L2 drops the larger operand first (first), keeps the smaller one longest (last), or both (first_last)",
}


def space(gemm: Gemm, device: Device) -> Space:
    """Every knob with its choices, simplest first; none that no config of this problem could use."""
    wide, high = max(gemm.n, gemm.m_max), min(gemm.n, gemm.m_max)
    tiles_m, tiles_n = -(-gemm.m_max // TILES_M[0]), -(-gemm.n // TILES_M[0])
    most = gemm.batch * max(
        -(-wide // TILES_M[0]) * -(-high // TILES_N[0]), -(-wide // TILES_N[0]) * -(-high // TILES_M[0])
    )
    steps = -(-gemm.k // TILES_K[0])
    several = most > device.units
    # Larger clusters lose where rows are aligned to lines of L2 (docs/decisions/wgmma.md).
    clusters = ((1, 2, 4) if misaligned_to_lines(gemm) else (1, 2)) if most > 1 else (1,)
    splits = tuple(s for s in _SPLITS if s == 1 or -(-steps // s) >= LEAST_STEPS)
    tiles_k = up_to(gemm.k, TILES_K)
    if gemm.invariant:
        splits, fixed = (part_count(gemm.n, gemm.k),), invariant_summation(gemm)
        tiles_k = tuple(tile for tile in tiles_k if summation(gemm.k, splits[0], tile) == fixed)
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("tile_m", up_to(wide, TILES_M)),
        ("tile_n", up_to(wide, TILES_N)),
        ("tile_k", tiles_k),
        ("stages", tuple(s for s in _STAGES if several or s <= max(2, steps))),
        ("schedule", (COOPERATIVE, PINGPONG) if several else (COOPERATIVE,)),
        ("resident", (1, 2) if several else (1,)),
        ("cluster_m", clusters),
        ("cluster_n", clusters),
        ("swap", (0, 1)),
        ("split", splits),
        ("reduction", (CLUSTER, KERNEL, *((BLOCK,) if gemm.invariant else ())) if max(splits) > 1 else (CLUSTER,)),
        ("load", loads(gemm)),
        ("epilogue", epilogues(gemm)),
        ("order", ORDERS if tiles_m > 1 and tiles_n > 1 else ("m",)),
        ("group", up_to(max(tiles_m, tiles_n), GROUPS)),
        ("l2_promotion", (2, 3, 0)),
        ("eviction", (NORMAL, EVICT_FIRST, EVICT_LAST, EVICT_BOTH)),
    )
    return Space("wgmma", tuple(Knob(name, choices, _MEANINGS[name]) for name, choices in knobs))


def epilogues(gemm: Gemm) -> tuple[str, ...]:
    """The ways in which D can leave, mostly best first (``usual_epilogue``)."""
    if DTYPE_BYTES[gemm.out] > ELEMENT_BYTES:
        return (TMA, DIRECT) if stored_by_tma(gemm) else (DIRECT,)
    return (TMA, DIRECT, STAGED) if stored_by_tma(gemm) else (STAGED, DIRECT)


def loads(gemm: Gemm) -> tuple[str, ...]:
    """The ways in which A and B can reach shared memory."""
    operands: tuple[Operand, ...] = ("a", "b")
    left = [operand for operand in operands if not loaded_by_tma(gemm, operand)]
    if not left:
        return (TMA,)
    return (REPACK, COPY) if all(copy_bytes(gemm, operand) for operand in left) else (REPACK,)
