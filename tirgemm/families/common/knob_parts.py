"""Parts that knobs play, by their names: what a family's knobs say of tiles, stages and splits without the family.

The one table behind features, tiles and neighbours. A family whose knobs go by other names, or say less than the truth,
says so through the contract: ``WithDerivedKnobs``, ``WithOutputTile``, ``WithTileWork``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
# The knobs that play one part go by one name in every family where they can; the first that is present counts.
# A block of 0 is the whole extent, 0 threads are all that the device has.
_PARTS: dict[str, tuple[str, ...]] = {
    "tile_m": ("block_m", "tile_m"),
    "tile_n": ("block_n", "tile_n"),
    "tile_k": ("block_k", "tile_k"),
    "thread_m": ("thread_m", "tile_m", "warp_m"),
    "thread_n": ("thread_n", "tile_n", "warp_n"),
    "stages": ("stages",),
    "split": ("split_k", "split"),
    "warps_m": ("warps_m",),
    "warps_n": ("warps_n",),
}
# Knobs that decide how the work is cut; a family without any of them has groups of one config.
COARSE = frozenset(
    {
        *("tile_m", "tile_n", "block_m", "block_n", "split", "split_k"),
        *("schedule", "swap", "resident", "load", "reduction"),
    }
)
# Knobs that say how caches treat what is loaded. What they gain follows from no trait of a problem: no ranking orders
# configs by them.
CACHE_POLICY = ("eviction", "l2_promotion")


def knob_parts(knobs: Mapping[str, T]) -> dict[str, T]:
    """The values of those knobs that play a part, by the part."""
    return {
        part: next(knobs[name] for name in names if name in knobs)
        for part, names in _PARTS.items()
        if any(name in knobs for name in names)
    }
