"""The knobs of ``wgmma`` and their choices for a problem."""

from __future__ import annotations

from tirgemm.config import Knob, Space, Value
from tirgemm.device import Device
from tirgemm.families.wgmma.plan import COOPERATIVE, DIRECT, PINGPONG, STAGED, TMA, stored_by_tma
from tirgemm.gemm import DTYPE_BYTES, Gemm

TILES_M = (64, 128, 192, 256)
TILES_N = (16, 32, 64, 96, 128, 160, 192, 224, 256)
TILES_K = (64, 128)
_STAGES = (2, 3, 4, 5, 6, 7, 8)
_SPLITS = (1, 2, 4, 8, 16)
_GROUPS = (1, 4, 8, 16)
# A part of a split with fewer steps of k than this is mostly prologue and epilogue.
LEAST_STEPS = 4


def space(gemm: Gemm, device: Device) -> Space:
    """Every knob with its choices, simplest first; none that no config of this problem could use.

    tile_m, tile_n, tile_k: outputs of a thread block and its step in k. stages: tiles of A and B in flight.
    schedule: the consumer warpgroups share a tile (cooperative) or alternate on tiles of their own (pingpong).
    cluster_m, cluster_n: thread blocks that share tiles of B, of A, by multicast. split: parts of k, summed in order
    by a second kernel. epilogue: D leaves by TMA, through shared memory by rows (staged), or from the registers.
    order, group: tiles that are neighbours along m or n run together. l2_promotion: bytes that an L2 miss of A or B
    fetches (the driver's enumeration: 0 none, 2 128, 3 256).
    """
    tiles_m, tiles_n = -(-gemm.m_max // TILES_M[0]), -(-gemm.n // TILES_N[0])
    steps = -(-gemm.k // TILES_K[0])
    several = tiles_m * tiles_n * gemm.batch > device.units
    knobs: tuple[tuple[str, tuple[Value, ...]], ...] = (
        ("tile_m", _up_to(gemm.m_max, TILES_M)),
        ("tile_n", _up_to(gemm.n, TILES_N)),
        ("tile_k", _up_to(gemm.k, TILES_K)),
        ("stages", tuple(s for s in _STAGES if several or s <= max(2, steps))),
        ("schedule", (COOPERATIVE, PINGPONG) if several else (COOPERATIVE,)),
        ("cluster_m", (1, 2) if tiles_m > 1 else (1,)),
        ("cluster_n", (1, 2) if tiles_n > 1 else (1,)),
        ("split", tuple(s for s in _SPLITS if s == 1 or -(-steps // s) >= LEAST_STEPS)),
        ("epilogue", epilogues(gemm)),
        ("order", ("m", "n") if tiles_m > 1 and tiles_n > 1 else ("m",)),
        ("group", tuple(g for g in _GROUPS if g < 2 * max(tiles_m, tiles_n if tiles_m > 1 else 1))),
        ("l2_promotion", (2, 3, 0)),
    )
    return Space("wgmma", tuple(Knob(name, choices) for name, choices in knobs))


def _up_to(size: int, tiles: tuple[int, ...]) -> tuple[int, ...]:
    """Tiles that a dimension of ``size`` can use: up to the first that holds all of it."""
    return tuple(t for i, t in enumerate(tiles) if i == 0 or tiles[i - 1] < size)


def epilogues(gemm: Gemm) -> tuple[str, ...]:
    """The ways in which D can leave, best first."""
    if stored_by_tma(gemm):
        return (TMA, DIRECT, STAGED)
    return (STAGED, DIRECT) if DTYPE_BYTES[gemm.out] == 2 else (DIRECT,)
