"""Shared-memory wavefronts of a warp's fragment loads, by the lanes' addresses.

A wavefront serves 128 bytes, at most one word of each bank. An access of 16 bytes a lane is served a quarter of the
warp at a time, one of 8 bytes a half; two neighbouring parts are served together where every lane's address is also
that of the lane with the lowest bit flipped, or of the lane with the second bit flipped (Greg Smith of NVIDIA,
"Unexpected shared memory bank conflict", forums.developer.nvidia.com/t/77228). ``tirgemm.analysis.banks.wavefronts``
says it of any access.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from tirgemm.families.simt.tiling import ThreadTiling
from tirgemm.hardware import WARP

_BANKS, _WORD = 32, 4


def lane_place(lane: int, lanes_n: int, order: str) -> tuple[int, int]:
    """Row and column of a lane among its warp's threads."""
    if order == "row":
        return divmod(lane, lanes_n)
    lanes_m = WARP // lanes_n
    middle, inner_m = max(1, min(2, lanes_n // 2)), min(4, lanes_m)
    rest, low_n = divmod(lane, 2)
    rest, low_m = divmod(rest, inner_m)
    rest, mid_n = divmod(rest, middle)
    high_n, high_m = divmod(rest, lanes_m // inner_m)
    return high_m * inner_m + low_m, (high_n * middle + mid_n) * 2 + low_n


def fragment_wavefronts(cut: ThreadTiling) -> int:
    """Wavefronts that a warp's fragments of one step of k take, A and B together, where reads is "fragments"."""
    size = cut.element_bytes
    total = 0
    pieces_a, pieces_b = (cut.pieces_m, cut.piece_m), (cut.pieces_n, cut.piece_n)
    for axis, (pieces, piece), width in zip((0, 1), (pieces_a, pieces_b), cut.fragment_widths, strict=True):
        once = _access(cut.lanes_n, cut.lane_order, axis, piece * size, width * size)
        total += pieces * (piece // width) * once
    return total


@lru_cache(maxsize=1024)
def _access(lanes_n: int, order: str, axis: int, stride: int, width: int) -> int:
    """Wavefronts of one access of ``width`` bytes a lane, lanes ``stride`` bytes apart along ``axis``."""
    places = [lane_place(lane, lanes_n, order)[axis] * stride for lane in range(WARP)]
    part = min(WARP, 4 * _BANKS // max(width, _WORD))
    total = 0
    for start in range(0, WARP, min(WARP, 2 * part)):
        lanes = range(start, min(WARP, start + 2 * part))
        paired = any(all(places[lane] == places[lane ^ bit] for lane in lanes) for bit in (1, 2))
        groups = [lanes] if paired or part == WARP else [lanes[:part], lanes[part:]]
        total += sum(_passes({places[lane] for lane in group}, width) for group in groups)
    return total


def _passes(addresses: set[int], width: int) -> int:
    words: dict[int, set[int]] = defaultdict(set)
    for address in addresses:
        for word in range(address // _WORD, (address + max(width, _WORD) - 1) // _WORD + 1):
            words[word % _BANKS].add(word)
    return max(len(distinct) for distinct in words.values())
