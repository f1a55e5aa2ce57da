"""Registers that accesses and branches depend on; the rest of the integer arithmetic is not followed."""

from __future__ import annotations

from collections.abc import Iterator

from tirgemm.analysis.ir.expressions import LANE, IrExpr, linear
from tirgemm.analysis.ir.patterns import LINE
from tirgemm.analysis.ir.sites import LSU, Assign, If, Loop, Site, Statements, While


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
    return any(
        isinstance(s, Site)
        or (isinstance(s, (Loop, While)) and has_sites(s.body))
        or (isinstance(s, If) and (has_sites(s.then) or has_sites(s.otherwise)))
        for s in body
    )


def _assignments(body: Statements) -> Iterator[Assign]:
    for statement in body:
        if isinstance(statement, Assign):
            yield statement
        elif isinstance(statement, If):
            yield from _assignments(statement.then)
            yield from _assignments(statement.otherwise)
        elif isinstance(statement, (Loop, While)):
            yield from _assignments(statement.body)


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
        elif isinstance(statement, If):
            yield from _needed(statement.then, (*around, statement.condition), known, varying)
            yield from _needed(statement.otherwise, (*around, statement.condition), known, varying)
        elif isinstance(statement, Loop):
            yield from _needed(statement.body, (*around, statement.extent), known, varying)
        else:
            yield from _needed(statement.body, (*around, statement.condition), known, varying)


def _of_pattern(address: IrExpr, varying: frozenset[str]) -> Iterator[str]:
    _, atoms = linear(address)
    for atom, factor in atoms.items():
        if factor % LINE or atom.symbols & varying:
            yield from _registers(atom.symbols)


def _registers(symbols: frozenset[str]) -> Iterator[str]:
    return (name for name in symbols if "%" in name and not name.startswith("loop%"))
