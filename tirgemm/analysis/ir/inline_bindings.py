"""Inline let-bindings whose operands do not change.

A ``let`` whose value depends on a register is one itself, for the register may change while the name is in use. Where
it does not, the name is as good as its value; a loop in which only such names are set is then an ordinary dimension.
"""

from __future__ import annotations

from dataclasses import replace

from tirgemm.analysis.ir.expressions import IrExpr, substitute
from tirgemm.analysis.ir.registers import assigned
from tirgemm.analysis.ir.sites import Assign, If, Loop, Site, Statement, Statements, While


def inlined(body: Statements) -> Statements:
    """``body`` without the names that stand for what does not change while they are used."""
    return _block(body, {})


def is_name(register: str) -> bool:
    """Whether a register is a name that is set in one place: an element of a buffer has an index."""
    return "[" not in register


def _block(body: Statements, values: dict[str, IrExpr]) -> Statements:
    known = dict(values)
    memo: dict[IrExpr, IrExpr] = {}
    statements: list[Statement] = []
    for position, statement in enumerate(body):
        if isinstance(statement, Assign):
            value = substitute(statement.value, known, memo)
            if is_name(statement.register) and not value.symbols & assigned(body[position + 1 :]):
                known[statement.register] = value
                memo = {}
                continue
            statements.append(replace(statement, value=value))
        else:
            statements.append(_statement(statement, known, memo))
    return tuple(statements)


def _statement(statement: Statement, known: dict[str, IrExpr], memo: dict[IrExpr, IrExpr]) -> Statement:
    if isinstance(statement, Site):
        return replace(
            statement,
            address=substitute(statement.address, known, memo),
            guards=tuple(substitute(g, known, memo) for g in statement.guards),
            source=None if statement.source is None else substitute(statement.source, known, memo),
        )
    if isinstance(statement, If):
        return replace(
            statement,
            condition=substitute(statement.condition, known, memo),
            then=_block(statement.then, known),
            otherwise=_block(statement.otherwise, known),
        )
    if isinstance(statement, Loop):
        return replace(statement, extent=substitute(statement.extent, known, memo), body=_block(statement.body, known))
    if isinstance(statement, While):
        return replace(
            statement, condition=substitute(statement.condition, known, memo), body=_block(statement.body, known)
        )
    return statement
