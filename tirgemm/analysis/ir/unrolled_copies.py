"""Groups of sites that are unrolled copies of one access: their addresses differ by constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tirgemm.analysis.ir.expressions import linear
from tirgemm.analysis.ir.sites import If, Loop, Site, Statements, While, bodies_of

Around = tuple["Loop | While", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """Sites of one buffer, operation, width and loop nest whose addresses differ by constants, in source order.

    ``loops`` are around them, outermost first. ``guarded``: whether every site is under a condition.
    """

    sites: tuple[Site, ...]
    loops: Around
    guarded: bool = False

    @property
    def first(self) -> Site:
        return self.sites[0]


def accesses_of(body: Statements) -> tuple[Access, ...]:
    """The accesses of a tree, in the order of their first sites."""
    groups: dict[object, tuple[list[Site], Around]] = {}
    free: set[object] = set()
    for site, loops, conditional in _placed(body, (), conditional=False):
        _, atoms = linear(site.address)
        key = (
            site.buffer,
            site.operand,
            site.space,
            site.op,
            site.width,
            site.matrices,
            site.transposed,
            site.detail,
            tuple(map(id, loops)),
            frozenset((id(a), f) for a, f in atoms.items()),
        )
        groups.setdefault(key, ([], loops))[0].append(site)
        if not conditional and not site.guards:
            free.add(key)
    return tuple(Access(tuple(sites), loops, key not in free) for key, (sites, loops) in groups.items())


def _placed(body: Statements, around: Around, *, conditional: bool) -> Iterator[tuple[Site, Around, bool]]:
    for statement in body:
        if isinstance(statement, Site):
            yield statement, around, conditional
        loops = (*around, statement) if isinstance(statement, (Loop, While)) else around
        for inner in bodies_of(statement):
            yield from _placed(inner, loops, conditional=conditional or isinstance(statement, If))
