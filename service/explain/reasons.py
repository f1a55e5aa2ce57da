"""Reasons for uncoalesced accesses, from the addresses of one request."""

from __future__ import annotations

from itertools import pairwise

from tirgemm.analysis.banks.coalescing import SECTOR_BYTES
from tirgemm.analysis.memory_traffic import AccessReport


def why_sectors(access: AccessReport) -> str:
    """In a sentence without its end; empty where the request that is at hand does not show it."""
    if access.example is None:
        return ""
    starts = sorted({address for address in access.example.addresses if address is not None})
    runs = _runs(starts, access.width)
    if len(runs) == 1:
        first, length = runs[0]
        if first % SECTOR_BYTES == 0:
            return ""
        return f"its {length} bytes lie together, but begin {first % SECTOR_BYTES} bytes into a sector"
    lengths = {length for _, length in runs}
    long = f"{min(lengths)}" if len(lengths) == 1 else f"{min(lengths)} to {max(lengths)}"
    apart = {after[0] - before[0] for before, after in pairwise(runs)}
    step = f", {min(apart)} bytes apart" if len(apart) == 1 else ""
    within = sum(first % SECTOR_BYTES != 0 for first, _ in runs)
    torn = f"; {within} of them begin within a sector" if within else ""
    return f"its lanes touch {len(runs)} runs of {long} bytes{step}{torn}, and sectors have {SECTOR_BYTES}"


def _runs(starts: list[int], width: int) -> list[tuple[int, int]]:
    """(first byte, length) of what lies side by side."""
    runs: list[tuple[int, int]] = []
    for start in starts:
        if runs and sum(runs[-1]) >= start:
            runs[-1] = runs[-1][0], max(runs[-1][1], start + width - runs[-1][0])
        else:
            runs.append((start, width))
    return runs
