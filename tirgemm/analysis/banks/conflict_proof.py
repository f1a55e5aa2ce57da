"""Proof that a shared layout is free of bank conflicts, the lanes that collide where it is not, and layouts that are.

A proof is exhaustive: every request of the pattern is counted by the bank model of the architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tirgemm.analysis.banks.access_patterns import Pattern
from tirgemm.analysis.banks.wavefronts import BankReport, analyze
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import Layout, Swizzle

# The architecture where nothing is said of one: by no other model does a layout take more passes. (Conflicts it may
# have elsewhere: where sm_90a serves a paired half-warp in one phase for two, their words may meet.)
STRICTEST = "sm_80"
_MOST_BITS = 5
_MOST_SHIFT = 12
# Bytes.
_LONGEST_PAD = 128


@dataclass(frozen=True, slots=True)
class Collision:
    """Two lanes of one phase of a request that want different words of one bank.

    ``elements`` are (row, column), ``addresses`` bytes from the tile's start.
    """

    request: int
    lanes: tuple[int, int]
    elements: tuple[tuple[int, int], tuple[int, int]]
    addresses: tuple[int, int]
    bank: int
    wavefronts: int
    fewest: int

    def __str__(self) -> str:
        sides = [
            f"lane {lane} at ({row}, {column}), byte {address}"
            for lane, (row, column), address in zip(self.lanes, self.elements, self.addresses, strict=True)
        ]
        return (
            f"request {self.request}: {sides[0]}, and {sides[1]}, want different words of bank {self.bank}; "
            f"{self.wavefronts} wavefronts for {self.fewest}"
        )


@dataclass(frozen=True, eq=False)
class Proof:
    """What ``prove`` found: conflict-free, or a ``collision`` (None if free)."""

    layout: Layout
    pattern: Pattern
    report: BankReport
    collision: Collision | None

    @property
    def conflict_free(self) -> bool:
        return self.collision is None

    def __str__(self) -> str:
        what = f"layout {self.layout}, {self.pattern.name}: "
        if self.collision is None:
            return f"{what}conflict-free, {self.report.total_wavefronts} wavefronts in {self.report.requests} requests"
        return f"{what}{self.report.total_conflicts} conflicts in {self.report.requests} requests; {self.collision}"


def misalignment(layout: Layout, pattern: Pattern) -> str | None:
    """Why ``layout`` cannot serve the pattern's accesses at all, or None: a vector torn apart or off its alignment."""
    width = pattern.access.width
    if width % layout.element_bytes:
        return f"{pattern.name} has {width} bytes a lane, no whole elements of {layout.element_bytes}"
    active = np.ones(pattern.rows.shape, dtype=np.bool_) if pattern.active is None else pattern.active.copy()
    active[:, pattern.access.lanes :] = False
    rows, columns = pattern.rows[active], pattern.columns[active]
    length = width // layout.element_bytes
    if rows.size and (rows.min() < 0 or rows.max() >= layout.rows):
        return f"{pattern.name} goes to row {int(rows.max())} of {layout.rows}"
    if columns.size and (columns.min() < 0 or columns.max() + length > layout.columns):
        return f"{pattern.name} goes to column {int(columns.max()) + length - 1} of {layout.columns}"
    first = layout.byte_offset(rows, columns)
    off = first % width != 0
    for place in range(1, length):
        off |= layout.byte_offset(rows, columns + place) != first + place * layout.element_bytes
    if off.any():
        at = int(np.flatnonzero(off)[0])
        return f"the {width} bytes from ({int(rows[at])}, {int(columns[at])}) on are not one aligned run in {layout}"
    return None


def prove(layout: Layout, pattern: Pattern, arch: str = STRICTEST) -> Proof:
    """Count every request of ``pattern`` on ``layout``, from a start that is aligned to all banks.

    Raises InvalidRequest where the layout cannot serve the pattern at all.
    """
    if (reason := misalignment(layout, pattern)) is not None:
        raise InvalidRequest(reason)
    # What lanes hold that take no part may lie anywhere.
    rows, columns = pattern.rows % layout.rows, pattern.columns % layout.columns
    report = analyze(layout.byte_offset(rows, columns), pattern.access, pattern.active, arch)
    return Proof(layout, pattern, report, _collision(report, pattern))


def _collision(report: BankReport, pattern: Pattern) -> Collision | None:
    requests = np.flatnonzero(report.conflicts)
    if not requests.size:
        return None
    request = int(requests[0])
    phase = max(report.phases(request), key=lambda phase: phase.wavefronts)
    bank = max(range(len(phase.words)), key=lambda bank: len(phase.words[bank]))
    wanted: dict[int, int] = {}
    for lane, banks, first in zip(phase.lanes, phase.banks, phase.first_words, strict=True):
        if bank in banks:
            wanted.setdefault(first + banks.index(bank), lane)
    one, other = (lane for _, lane in sorted(wanted.items(), key=lambda item: item[1])[:2])
    elements = [(int(pattern.rows[request, lane]), int(pattern.columns[request, lane])) for lane in (one, other)]
    addresses = [int(report.addresses[request, lane]) for lane in (one, other)]
    return Collision(
        request,
        (one, other),
        (elements[0], elements[1]),
        (addresses[0], addresses[1]),
        bank,
        int(report.wavefronts[request]),
        int(report.fewest[request]),
    )


def is_conflict_free(layout: Layout, patterns: Sequence[Pattern], arch: str = STRICTEST) -> bool:
    """Whether every pattern can be served and none conflicts."""
    return all(misalignment(layout, p) is None and prove(layout, p, arch).conflict_free for p in patterns)


def smallest_pad(layout: Layout, patterns: Sequence[Pattern], arch: str = STRICTEST) -> Layout | None:
    """``layout`` with the fewest padded elements (none included) with which no pattern conflicts; None if none does.

    Banks repeat every 128 bytes, so that a longer pad is never needed.
    """
    for pad in range(_LONGEST_PAD // layout.element_bytes):
        padded = layout.with_(stride=layout.columns + pad, permutation=None)
        if is_conflict_free(padded, patterns, arch):
            return padded
    return None


def find_swizzle(layout: Layout, patterns: Sequence[Pattern], arch: str = STRICTEST) -> Layout | None:
    """``layout`` without padding and with the XOR swizzle of the fewest bits with which no pattern conflicts.

    None if none does. Of equally many bits, one that keeps elements in their rows, then the longest runs, then the
    smallest shift.
    """
    return next((candidate for candidate in _permuted(layout) if is_conflict_free(candidate, patterns, arch)), None)


def _permuted(layout: Layout) -> Iterator[Layout]:
    plain = layout.with_(stride=layout.columns, permutation=None)
    candidates = []
    for bits in range(1, _MOST_BITS + 1):
        for base in range(plain.size.bit_length()):
            for shift in range(bits, _MOST_SHIFT):
                if (1 << (base + shift)) < plain.size and plain.size % (1 << (base + bits)) == 0:
                    candidates.append(plain.with_(permutation=Swizzle(bits, base, shift)))
    return iter(sorted(candidates, key=_preference))


def _preference(layout: Layout) -> tuple[int, bool, int, int]:
    permutation = layout.permutation
    assert permutation is not None
    return permutation.bits, not layout.keeps_rows, -permutation.base, permutation.shift


@dataclass(frozen=True, slots=True)
class Solution:
    """What serves all of some patterns without conflicts: each None where nothing of its kind does."""

    plain: Layout | None
    padded: Layout | None
    permuted: Layout | None

    @property
    def best(self) -> Layout | None:
        """Plain rows, else permuted ones, which take no more shared memory, else padded ones."""
        return self.plain or self.permuted or self.padded


def solve(layout: Layout, patterns: Sequence[Pattern]) -> Solution:
    """The layouts of ``layout``'s rows and columns that are conflict-free for every pattern, loads and stores
    together."""
    plain = layout.with_(stride=layout.columns, permutation=None)
    if is_conflict_free(plain, patterns):
        return Solution(plain, plain, None)
    return Solution(None, smallest_pad(layout, patterns), find_swizzle(layout, patterns))
