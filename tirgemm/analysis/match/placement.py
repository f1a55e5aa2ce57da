"""Placement of shared-memory instructions: the site of each, by the constants in its address.

The machine code adds constants to few registers, as the IR adds them to few expressions: the constants of one register
must be those of one access, but for one difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tirgemm.analysis.ir.expressions import linear
from tirgemm.analysis.ir.sites import Loop, Site
from tirgemm.analysis.ir.unrolled_copies import Access
from tirgemm.analysis.sass.program import Instruction

Uses = dict[Site, dict[int, float]]
"""By site, how many instructions of each width begin at it, for each time that it stands in the IR's unrolled code."""

_MOST_TURNS = 64


@dataclass(frozen=True, eq=False, slots=True)
class WrittenAccess:
    """An access as it stands in one loop of the machine code, the loops of ``unrolled`` written out."""

    access: Access
    unrolled: tuple[Loop, ...] = ()

    @property
    def times(self) -> int:
        """How often it stands there for each time in the IR."""
        return math.prod(int(loop.extent.value) for loop in self.unrolled)

    @property
    def places(self) -> dict[int, Site]:
        """The site at each constant offset, in every turn of the loops whose counter just moves it on."""
        sites: dict[int, Site] = {}
        for site in self.access.sites:
            constant, atoms = linear(site.address)
            offsets = [constant]
            for loop in self.unrolled:
                step = next((f for a, f in atoms.items() if a.kind == "symbol" and a.value == loop.variable), 0)
                if step and int(loop.extent.value) <= _MOST_TURNS:
                    offsets = [o + turn * step for o in offsets for turn in range(int(loop.extent.value))]
            sites.update(dict.fromkeys(offsets, site))
        return sites


@dataclass(frozen=True, slots=True)
class Placed:
    """What instructions are: the ``uses`` of every site, and for every access its own ``instructions``."""

    uses: Uses
    instructions: dict[Access, tuple[Instruction, ...]]


def placed(accesses: Sequence[WrittenAccess], instructions: Sequence[Instruction]) -> Placed | None:
    """The site of every instruction; None where one fits none, or a site's bytes are in none."""
    bases: dict[tuple[str, ...], list[tuple[int, int, Instruction]]] = {}
    for instruction in instructions:
        memory = instruction.memory
        if memory is None or memory.address is None:
            return None
        width = 16 if memory.matrices else memory.width
        bases.setdefault(memory.address.registers, []).append((memory.address.offset, width, instruction))
    places = {w.access: w.places for w in accesses}
    times = {w.access: w.times for w in accesses}
    uses: Uses = {}
    mine: dict[Access, list[Instruction]] = {access: [] for access in places}
    covered: dict[Access, set[int]] = {access: set() for access in places}
    for group in sorted(bases.values(), key=len, reverse=True):
        home = _home(group, places, covered)
        if home is None:
            return None
        access, shift = home
        for offset, width, instruction in group:
            first = offset - shift
            site = places[access][first]
            by_width = uses.setdefault(site, {})
            by_width[width] = by_width.get(width, 0.0) + 1 / times[access]
            covered[access] |= set(range(first, first + width, access.first.width))
            mine[access].append(instruction)
    if any(set(known) - covered[a] for a, known in places.items()):
        return None
    return Placed(uses, {a: tuple(home) for a, home in mine.items()})


def _home(
    group: Sequence[tuple[int, int, Instruction]],
    places: dict[Access, dict[int, Site]],
    covered: dict[Access, set[int]],
) -> tuple[Access, int] | None:
    """The access, and the difference of constants, by which all of a register's instructions read elements of it.

    Of several, the one that covers most of what is not covered yet; then the smallest difference.
    """
    best: tuple[int, int, Access, int] | None = None
    lowest = min(offset for offset, _, _ in group)
    for access, known in places.items():
        size = access.first.width
        for shift in {0, *(lowest - place for place in known)}:
            new: set[int] = set()
            for offset, width, _ in group:
                elements = range(offset - shift, offset - shift + width, size)
                if width < size or any(e not in known for e in elements):
                    break
                new.update(elements)
            else:
                score = len(new - covered[access]), -abs(shift)
                if best is None or score > best[:2]:
                    best = (*score, access, shift)
    return None if best is None else best[2:]
