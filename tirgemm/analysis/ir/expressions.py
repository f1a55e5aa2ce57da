"""Integer expressions of a kernel as data: built once, shared where equal, evaluated over whole arrays of lanes.

A node's value is an int or an int64 array; symbols (lane, warp, blockIdx.x, a loop, a register) get theirs from the
environment. ``linear`` splits an expression into a constant and weighted atoms, which is what telling apart the
iterations that matter needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

IrValue: TypeAlias = Any
"""An int, or an int64 or bool array."""

LANE, WARP = "lane", "warp"


class DataDependent(Exception):
    """A value that the kernel reads from memory or computes in a way that is not modelled; the text says which."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class IrExpr:
    """One node. ``value`` is a constant's number, a symbol's name, or an unknown's reason."""

    kind: str
    args: tuple[IrExpr, ...] = ()
    value: Any = None
    symbols: frozenset[str] = frozenset()
    unknown: str = ""


def _floor(a: IrValue, b: IrValue) -> IrValue:
    # Blocks that have nothing to do may divide by nothing.
    return a // (b if isinstance(b, int) else np.where(np.asarray(b) == 0, 1, b))


def _truncdiv(a: IrValue, b: IrValue) -> IrValue:
    quotient = _floor(np.abs(a), np.abs(b) if not isinstance(b, int) else abs(b))
    return np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -quotient, quotient)


_OPERATIONS: dict[str, Callable[..., IrValue]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": _floor,
    "floormod": lambda a, b: a - _floor(a, b) * b,
    "truncdiv": _truncdiv,
    "truncmod": lambda a, b: a - _truncdiv(a, b) * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "invert": lambda a: ~a,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "min": np.minimum,
    "max": np.maximum,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "both": np.logical_and,
    "either": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
    "u32": lambda a: a & 0xFFFFFFFF,
}
_DIVISIONS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})
COMPARISONS = frozenset({"lt", "le", "eq", "ne"})

# Nodes in use, by what they are: equal nodes are one object.
_known: WeakValueDictionary[tuple[Any, ...], IrExpr] = WeakValueDictionary()


def const(value: int) -> IrExpr:
    return _interned("const", (), int(value))


def symbol(name: str) -> IrExpr:
    return _interned("symbol", (), name)


def unknown(reason: str) -> IrExpr:
    """A value that cannot be known; everything made of it is unknown too."""
    return _interned("unknown", (), reason)


def _interned(kind: str, args: tuple[IrExpr, ...], value: Any = None) -> IrExpr:
    key = (kind, value, *map(id, args))
    interned = _known.get(key)
    if interned is None:
        symbols = frozenset((value,)) if kind == "symbol" else frozenset().union(*(a.symbols for a in args))
        reason = value if kind == "unknown" else next((a.unknown for a in args if a.unknown), "")
        interned = _known[key] = IrExpr(kind, args, value, symbols, reason)
    return interned


def make(kind: str, *args: IrExpr) -> IrExpr:
    """The node ``kind`` over ``args``, folded where that is plain; KeyError for an operation that is not modelled."""
    operation = _OPERATIONS[kind]
    if kind in _DIVISIONS and args[1].kind == "const" and not args[1].value:
        return unknown("a division by zero")
    if all(a.kind == "const" for a in args):
        return const(int(operation(*(a.value for a in args))))
    a, b = args[0], args[-1]
    zero_a, zero_b = (x.kind == "const" and x.value == 0 for x in (a, b))
    one_a, one_b = (x.kind == "const" and x.value == 1 for x in (a, b))
    if kind == "add" and (zero_a or zero_b):
        return b if zero_a else a
    if kind in ("sub", "shl", "shr", "xor", "or") and zero_b and len(args) == 2:
        return a
    if kind == "mul":
        if zero_a or zero_b:
            return const(0)
        if one_a or one_b:
            return b if one_a else a
    if kind in ("floordiv", "truncdiv") and one_b:
        return a
    if kind in ("floormod", "truncmod") and one_b:
        return const(0)
    if kind == "and" and (zero_a or zero_b):
        return const(0)
    if kind == "select" and a.kind == "const":
        return args[1] if a.value else args[2]
    if kind == "both" and a.kind == "const":
        return b if a.value else a
    if kind == "both" and b.kind == "const":
        return a if b.value else b
    return _chosen(kind, args) or _of_thread(kind, args) or _interned(kind, args)


def _chosen(kind: str, args: tuple[IrExpr, ...]) -> IrExpr | None:
    """What a comparison of a number with one of two numbers says of the choice between them."""
    if kind not in COMPARISONS:
        return None
    for at, other in ((0, 1), (1, 0)):
        choice, number = args[at], args[other]
        if choice.kind == "select" and all(a.kind == "const" for a in (number, *choice.args[1:])):
            pairs = [(value, number) if at == 0 else (number, value) for value in choice.args[1:]]
            yes, no = (bool(make(kind, *pair).value) for pair in pairs)
            return const(yes) if yes == no else choice.args[0] if yes else make("not", choice.args[0])
    return None


def add(a: IrExpr, b: IrExpr | int) -> IrExpr:
    return make("add", a, const(b) if isinstance(b, int) else b)


def scale(a: IrExpr, factor: int) -> IrExpr:
    return make("mul", a, const(factor))


def _thread() -> IrExpr:
    return _interned("add", (_interned("mul", (symbol(WARP), const(32))), symbol(LANE)))


def thread_index(extents: tuple[int, int, int], axis: int) -> IrExpr:
    """threadIdx along ``axis`` by warp and lane, for a block of ``extents``."""
    if extents[axis] == 1:
        return const(0)
    behind = extents[0] if axis == 1 else extents[0] * extents[1] if axis == 2 else 1
    index = make("floordiv", _thread(), const(behind))
    above = extents[1] * extents[2] if axis == 0 else extents[2] if axis == 1 else 1
    return make("floormod", index, const(extents[axis])) if above > 1 else index


def _of_thread(kind: str, args: tuple[IrExpr, ...]) -> IrExpr | None:
    """What is left of 32 * warp + lane where an operation takes only one of the two."""
    if len(args) != 2 or args[1].kind != "const" or args[0] is not _thread():
        return None
    number = int(args[1].value)
    power = number.bit_length() - 1
    exact = number > 0 and number == 1 << power
    if kind in ("floormod", "truncmod") and exact:
        kind, number = "and", number - 1
    if kind == "and" and 0 <= number < 32:
        return symbol(LANE) if number == 31 else _interned("and", (symbol(LANE), const(number)))
    if kind == "and" and number & 31 == 31:
        return make("add", make("mul", make("and", symbol(WARP), const(number >> 5)), const(32)), symbol(LANE))
    if kind in ("floordiv", "truncdiv") and exact:
        kind, number = "shr", power
    if kind == "shr" and number >= 5:
        return make("shr", symbol(WARP), const(number - 5))
    return None


def evaluate(expr: IrExpr, environment: Mapping[str, IrValue], memo: dict[int, IrValue] | None = None) -> IrValue:
    """The value of ``expr``; ``memo`` keeps those of shared nodes. Raises DataDependent where one is unknown."""
    memo = {} if memo is None else memo
    return _evaluate(expr, environment, memo)


def _evaluate(expr: IrExpr, environment: Mapping[str, IrValue], memo: dict[int, IrValue]) -> IrValue:
    if expr.kind == "const":
        return expr.value
    evaluated = memo.get(id(expr))
    if evaluated is not None:
        return evaluated
    if expr.unknown:
        raise DataDependent(expr.unknown)
    if expr.kind == "symbol":
        value = environment.get(expr.value)
        if value is None:
            raise DataDependent(f"{expr.value} has no known value")
        if isinstance(value, str):
            raise DataDependent(value)
    else:
        value = _OPERATIONS[expr.kind](*(_evaluate(a, environment, memo) for a in expr.args))
    memo[id(expr)] = value
    return value


@lru_cache(maxsize=1 << 13)
def linear(expr: IrExpr, factor: int = 1) -> tuple[int, Mapping[IrExpr, int]]:
    """``factor * expr`` as a constant and the coefficients of its atoms: what is no sum, difference or multiple."""
    atoms: dict[IrExpr, int] = {}
    constant = _split(expr, factor, atoms)
    return constant, {atom: count for atom, count in atoms.items() if count}


def _split(expr: IrExpr, factor: int, atoms: dict[IrExpr, int]) -> int:
    kind = expr.kind
    if kind == "const":
        return factor * int(expr.value)
    if kind in ("add", "sub"):
        sign = 1 if kind == "add" else -1
        return _split(expr.args[0], factor, atoms) + _split(expr.args[1], sign * factor, atoms)
    if kind == "mul" and expr.args[1].kind == "const":
        return _split(expr.args[0], factor * int(expr.args[1].value), atoms)
    if kind == "mul" and expr.args[0].kind == "const":
        return _split(expr.args[1], factor * int(expr.args[0].value), atoms)
    if kind == "shl" and expr.args[1].kind == "const":
        return _split(expr.args[0], factor << int(expr.args[1].value), atoms)
    atoms[expr] = atoms.get(expr, 0) + factor
    return 0


def substitute(expr: IrExpr, values: Mapping[str, IrExpr], memo: dict[IrExpr, IrExpr] | None = None) -> IrExpr:
    """``expr`` with the symbols of ``values`` replaced; ``memo`` keeps what shared nodes became."""
    memo = {} if memo is None else memo
    if not expr.symbols & values.keys():
        return expr
    replaced = memo.get(expr)
    if replaced is None:
        if expr.kind == "symbol":
            replaced = values[expr.value]
        else:
            replaced = make(expr.kind, *(substitute(a, values, memo) for a in expr.args))
        memo[expr] = replaced
    return replaced


def comparisons(expr: IrExpr) -> Iterator[IrExpr]:
    """The comparisons of a condition, and what of it is neither a comparison nor built of such."""
    if expr.kind in ("both", "either", "not"):
        for arg in expr.args:
            yield from comparisons(arg)
    elif expr.kind != "const":
        yield expr


def conjuncts(expr: IrExpr) -> Iterator[IrExpr]:
    """The conditions that must all hold for ``expr`` to hold."""
    if expr.kind == "both":
        for arg in expr.args:
            yield from conjuncts(arg)
    elif expr.kind != "const" or not expr.value:
        yield expr


def under(expr: IrExpr, conditions: tuple[IrExpr, ...]) -> IrExpr:
    """What ``expr`` is where ``conditions`` hold: a choice by one of them is made."""
    known = {c for condition in conditions for c in conjuncts(condition)}
    while expr.kind == "select" and set(conjuncts(expr.args[0])) <= known:
        expr = expr.args[1]
    return expr


def maximal(expr: IrExpr, inside: Callable[[frozenset[str]], bool]) -> Iterator[IrExpr]:
    """The largest parts of ``expr`` whose symbols satisfy ``inside``, constants left out."""
    if not expr.symbols:
        return
    if inside(expr.symbols):
        yield expr
        return
    for arg in expr.args:
        yield from maximal(arg, inside)
