"""Vectorised accesses: which narrow accesses of the IR the compiler merged into wide instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from tirgemm.analysis.ir.sites import Site
from tirgemm.analysis.match.placement import WrittenAccess

_WIDEST = (16, 8, 4, 2)


def merged(accesses: Sequence[WrittenAccess], compiled: Counter[int]) -> dict[Site, int] | None:
    """The width of every site if neighbours were merged so that the code has ``compiled`` of each width; None if they
    were not.

    Neighbours may lie in different turns of an unrolled loop; equal sites count once.
    """
    for widest in _WIDEST:
        counts: Counter[int] = Counter()
        widths: dict[Site, int] = {}
        for written in accesses:
            size = written.access.first.width
            there = written.places
            runs: set[tuple[int, int]] = set()
            for offset, site in there.items():
                width = _run(offset, size, widest, there)
                widths[site] = min(width, widths.get(site, width))
                runs.add((offset // width * width, width))
            counts.update(width for _, width in runs)
        if multiple(compiled, counts):
            return widths
    return None


def multiple(compiled: Counter[int], written: Counter[int]) -> int:
    """How many times the code has what was written, 0 where it is no whole number of times."""
    if not written or compiled.keys() != written.keys():
        return 0
    ratios = {divmod(compiled[w], written[w]) for w in written}
    return ratios.pop()[0] if len(ratios) == 1 and next(iter(ratios))[1] == 0 else 0


def _run(offset: int, size: int, widest: int, there: Container[int]) -> int:
    """The widest aligned run around ``offset`` all of whose elements are accessed."""
    width = widest
    while width > size:
        first = offset // width * width
        if all(first + step in there for step in range(0, width, size)):
            return width
        width //= 2
    return size
