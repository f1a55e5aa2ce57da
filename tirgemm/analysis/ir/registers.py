"""Registers that accesses and branches depend on; the rest of the integer arithmetic is not followed."""

from __future__ import annotations

from collections.abc import Iterator

from tirgemm.analysis.ir.expressions import LANE, IrExpr, linear
from tirgemm.analysis.ir.patterns import LINE
from tirgemm.analysis.ir.sites import LSU, Assign, Loop, Site, Statements, bodies_of


def address_registers(body: Statements) -> frozenset[str]:
    """The registers on which the pattern of an address, a condition or a trip count of some site depends.

    A term that moves an address by whole lines for all lanes alike changes nothing that is counted, so that the number
    of a pipeline's stage, for one, mostly drops out.
    """
    lanes = lane_varying(body)
    registers: set[str] = set()
    while True:
        more = set(_needed(body, (), frozenset(registers), lanes))
        if more <= registers:
            return frozenset(registers)
        registers |= more


def assigned(body: Statements) -> frozenset[str]:
    """The registers that ``body`` assigns."""
    return frozenset(a.register for a in _assignments(body))


def has_sites(body: Statements) -> bool:
    """Whether anything in ``body`` is a site."""
    return any(isinstance(s, Site) or any(map(has_sites, bodies_of(s))) for s in body)


def _assignments(body: Statements) -> Iterator[Assign]:
    for statement in body:
        if isinstance(statement, Assign):
            yield statement
        for inner in bodies_of(statement):
            yield from _assignments(inner)


def lane_varying(body: Statements) -> frozenset[str]:
    """Registers whose lanes may hold different values."""
    registers: set[str] = {LANE}
    while True:
        more = {a.register for a in _assignments(body) if a.value.symbols & registers}
        if more <= registers:
            return frozenset(registers)
        registers |= more


def _needed(
    body: Statements, around: tuple[IrExpr, ...], known: frozenset[str], varying: frozenset[str]
) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Site):
            for expr in (*around, *statement.guards):
                yield from _registers(expr.symbols)
            if statement.op in LSU:
                yield from _of_pattern(statement.address, varying)
        elif isinstance(statement, Assign):
            if statement.register in known:
                for expr in (*around, statement.value):
                    yield from _registers(expr.symbols)
        else:
            decides = statement.extent if isinstance(statement, Loop) else statement.condition
            for inner in bodies_of(statement):
                yield from _needed(inner, (*around, decides), known, varying)


def _of_pattern(address: IrExpr, varying: frozenset[str]) -> Iterator[str]:
    _, atoms = linear(address)
    for atom, factor in atoms.items():
        if factor % LINE or atom.symbols & varying:
            yield from _registers(atom.symbols)


def _registers(symbols: frozenset[str]) -> Iterator[str]:
    return (name for name in symbols if "%" in name and not name.startswith("loop%"))
