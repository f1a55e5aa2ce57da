"""Which narrow accesses the compiler made into wide ones: neighbours in a run that begins at a multiple of its width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tirgemm.analysis.expressions import linear
from tirgemm.analysis.groups import Access
from tirgemm.analysis.sites import Loop, Site

_WIDEST = (16, 8, 4, 2)


def merged(accesses: Sequence[tuple[Access, int]], found: Counter[int]) -> dict[Site, int] | None:
    """The width of every site if some were merged so that the code has ``found`` of each width; None if that cannot be.

    Each access comes with how often it stands in the code for each time in the IR: the turns of unrolled loops, over
    which neighbours may lie.
    """
    for widest in _WIDEST:
        counts: Counter[int] = Counter()
        widths: dict[Site, int] = {}
        for access, _ in accesses:
            size = access.first.width
            places = list(_places(access))
            there = {offset for _, offset in places}
            runs: set[tuple[int, int]] = set()
            for site, offset in places:
                width = _run(offset, size, widest, there)
                widths[site] = min(width, widths.get(site, width))
                runs.add((offset // width * width, width))
            counts.update(width for _, width in runs)
        if counts and all(found[w] % counts[w] == 0 and found[w] for w in counts) and counts.keys() == found.keys():
            ratios = {found[w] // counts[w] for w in counts}
            if len(ratios) == 1:
                return widths
    return None


def _run(offset: int, size: int, widest: int, there: set[int]) -> int:
    """The widest aligned run around ``offset`` all of whose elements are accessed."""
    width = widest
    while width > size:
        first = offset // width * width
        if all(first + step in there for step in range(0, width, size)):
            return width
        width //= 2
    return size


def _places(access: Access) -> Iterator[tuple[Site, int]]:
    """Every site with its constant offset, in every turn of the loops whose counter just moves it on."""
    for site in access.sites:
        constant, atoms = linear(site.address)
        offsets = [constant]
        for loop in access.loops:
            if not isinstance(loop, Loop) or loop.extent.kind != "const":
                continue
            step = next((f for a, f in atoms.items() if a.kind == "symbol" and a.value == loop.variable), 0)
            if step and int(loop.extent.value) <= 64:
                offsets = [o + turn * step for o in offsets for turn in range(int(loop.extent.value))]
        yield from ((site, offset) for offset in offsets)
