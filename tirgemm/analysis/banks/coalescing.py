"""Global memory: the 32-byte sectors and 128-byte lines that a warp's access touches, and how much of them it uses.

Sources: CUDA C++ Programming Guide, "Device Memory Accesses" (a warp's accesses become as many 32-byte transactions as
its lanes touch sectors); Nsight Compute, "Metrics Decoder" (a line is four sectors, a request looks up a tag a line).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tirgemm.analysis.banks.shared_access import WARP, WIDTHS
from tirgemm.errors import InvalidRequest

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SECTOR_BYTES = 32
LINE_BYTES = 128


@dataclass(frozen=True, eq=False)
class CoalescingReport:
    """What ``analyze`` found, request by request: [request] each. Arrays are not to be written to.

    ``sectors`` and ``lines`` are distinct ones; ``fewest_sectors`` are what as many distinct bytes would need side by
    side from an aligned start; ``used_bytes`` the distinct bytes that some lane asked for; ``aligned_bytes`` the
    largest power of two, at most a line, that divides the first address.
    """

    sectors: Integers
    lines: Integers
    fewest_sectors: Integers
    used_bytes: Integers
    aligned_bytes: Integers

    @property
    def sectors_per_request(self) -> float:
        """Mean over the requests that have an active lane; 0 where there is none."""
        return _ratio(self.sectors.sum(), (self.sectors > 0).sum())

    @property
    def lines_per_request(self) -> float:
        return _ratio(self.lines.sum(), (self.lines > 0).sum())

    @property
    def efficiency(self) -> float:
        """Bytes asked for over bytes of the sectors that were moved; 1 is the best."""
        return _ratio(self.used_bytes.sum(), SECTOR_BYTES * self.sectors.sum())

    @property
    def line_efficiency(self) -> float:
        """Bytes asked for over bytes of the lines that were touched: what counts where whole lines are moved."""
        return _ratio(self.used_bytes.sum(), LINE_BYTES * self.lines.sum())


def analyze(addresses: ArrayLike, width: int, active: ArrayLike | None = None) -> CoalescingReport:
    """Sectors and lines of requests of ``width`` bytes a lane: scalar, vector and cp.async accesses alike.

    ``addresses``: global byte addresses [request, 32], or [32]; ``active``: which lanes take part, all by default.
    Raises InvalidRequest for another width or number of lanes, a negative or a misaligned address.
    """
    if width not in WIDTHS:
        raise InvalidRequest(f"global access of {width} bytes a lane; it has {WIDTHS}")
    given, part = by_lane(addresses, active)
    for wrong, why in (
        (part & (given < 0), "is negative"),
        (part & (given % width != 0), f"is no multiple of {width}"),
    ):
        if wrong.any():
            request, lane = np.argwhere(wrong)[0].tolist()
            raise InvalidRequest(f"address {int(given[request, lane])} of lane {lane} in request {request} {why}")
    # A width divides a sector, so that no aligned access straddles two.
    used = _distinct(given // width, part) * width
    first = np.where(part, given, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    aligned = np.where(part.any(axis=1), np.minimum(first & -first, LINE_BYTES), 0)
    aligned = np.where(first == 0, LINE_BYTES, aligned)
    return CoalescingReport(
        sectors=_distinct(given // SECTOR_BYTES, part),
        lines=_distinct(given // LINE_BYTES, part),
        fewest_sectors=-(-used // SECTOR_BYTES),
        used_bytes=used,
        aligned_bytes=aligned.astype(np.int64),
    )


def by_lane(addresses: ArrayLike, active: ArrayLike | None) -> tuple[Integers, Flags]:
    """The addresses of requests and which lanes take part, all by default: [request, lane]. Raises InvalidRequest."""
    given = np.atleast_2d(np.asarray(addresses, dtype=np.int64))
    if given.ndim != 2 or given.shape[1] != WARP:
        raise InvalidRequest(f"addresses of shape {given.shape}; requests have {WARP} lanes each")
    part = np.asarray(True if active is None else active, dtype=np.bool_)
    try:
        return given, np.broadcast_to(part, given.shape)
    except ValueError:
        raise InvalidRequest(f"an active mask of shape {part.shape} for addresses of shape {given.shape}") from None


def looked_up_sectors(sources: ArrayLike, written: ArrayLike, active: ArrayLike) -> Integers:
    """The sectors that L1 counts for requests of cp.async: [request].

    ``sources``: the global byte addresses that they read, ``written``: the shared ones that they write, or the sources
    again where the copy goes through L1; [request, 32] each. A negative source is none. Of each line that is read, as
    many as it fills or reads, whichever are more: ncu on an H200 counts five for a line that is written 16 bytes off a
    sector.
    """
    read, to = np.asarray(sources, dtype=np.int64), np.asarray(written, dtype=np.int64)
    part = np.broadcast_to(np.asarray(active, dtype=np.bool_), read.shape) & (read >= 0)
    line = read // LINE_BYTES
    sectors = np.zeros(len(read), np.int64)
    for lane in range(WARP):
        of_line = part & (line == line[:, lane : lane + 1])
        first = part[:, lane] & ~of_line[:, :lane].any(axis=1)
        counts = [_distinct(at // SECTOR_BYTES, of_line) for at in (read, to)]
        sectors += np.where(first, np.maximum(*counts), 0)
    return sectors


def _distinct(values: Integers, part: Flags) -> Integers:
    """How many different values each request's active lanes have."""
    ordered = np.sort(np.where(part, values, -1), axis=1)
    new = np.ones_like(ordered, dtype=np.bool_)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return np.asarray((new & (ordered >= 0)).sum(axis=1), dtype=np.int64)


def _ratio(part: SupportsFloat, whole: SupportsFloat) -> float:
    return float(part) / float(whole) if float(whole) else 0.0


def matrix_addresses(coordinates: ArrayLike, ld: int, element_bytes: int) -> Integers:
    """Byte addresses of (row, column) pairs [..., 2] of a row-major matrix with leading dimension ``ld`` in
    elements."""
    at = np.asarray(coordinates, dtype=np.int64)
    return np.asarray((at[..., 0] * ld + at[..., 1]) * element_bytes, dtype=np.int64)
