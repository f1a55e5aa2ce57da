"""Integer expressions in ``m`` as data: grid sizes and strides of a Launch whose m is a range.

JSON form: an integer, the string ``"m"``, or ``[operator, left, right]``. The native launcher
evaluates the same form at the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}

_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}

ExprJson: TypeAlias = "int | str | list[ExprJson]"
Dim: TypeAlias = "int | Expr"


@dataclass(frozen=True, slots=True)
class Expr:
    """One node: ``m`` itself (operator ``"m"``) or a binary operation over two Dims."""

    op: str
    left: Dim = 0
    right: Dim = 0

    def __post_init__(self) -> None:
        if self.op != "m" and self.op not in _OPERATORS:
            raise ValueError(f"expression operator {self.op!r} is not one of m, {', '.join(sorted(_OPERATORS))}")

    def __add__(self, other: Dim) -> Dim:
        return make("add", self, other)

    def __radd__(self, other: Dim) -> Dim:
        return make("add", other, self)

    def __sub__(self, other: Dim) -> Dim:
        return make("sub", self, other)

    def __rsub__(self, other: Dim) -> Dim:
        return make("sub", other, self)

    def __mul__(self, other: Dim) -> Dim:
        return make("mul", self, other)

    def __rmul__(self, other: Dim) -> Dim:
        return make("mul", other, self)

    def __floordiv__(self, other: Dim) -> Dim:
        return make("floordiv", self, other)

    def __mod__(self, other: Dim) -> Dim:
        return make("mod", self, other)


M = Expr("m")


def make(op: str, left: Dim, right: Dim) -> Dim:
    """``left op right``, folded where both are integers or one is neutral."""
    if isinstance(left, int) and isinstance(right, int):
        return _OPERATORS[op](left, right)
    if op == "add" and (left == 0 or right == 0):
        return right if left == 0 else left
    if op == "sub" and right == 0:
        return left
    if op == "mul" and (left == 1 or right == 1):
        return right if left == 1 else left
    if op in ("floordiv", "ceildiv") and right == 1:
        return left
    return Expr(op, left, right)


def ceildiv(left: Dim, right: Dim) -> Dim:
    """``left / right`` rounded up."""
    return make("ceildiv", left, right)


def minimum(left: Dim, right: Dim) -> Dim:
    return make("min", left, right)


def evaluate(dim: Dim, m: int) -> int:
    """The value of ``dim`` for one m."""
    if isinstance(dim, int):
        return dim
    if dim.op == "m":
        return m
    return _OPERATORS[dim.op](evaluate(dim.left, m), evaluate(dim.right, m))


def text(dim: Dim) -> str:
    """``dim`` as a person reads it: ``ceildiv(m, 128) * 4``."""
    if isinstance(dim, int):
        return str(dim)
    if dim.op == "m":
        return "m"
    sign = _INFIX.get(dim.op)
    if sign is None:
        return f"{dim.op}({text(dim.left)}, {text(dim.right)})"
    left, right = text(dim.left), text(dim.right)
    left = f"({left})" if isinstance(dim.left, Expr) and dim.left.op in _INFIX else left
    right = f"({right})" if isinstance(dim.right, Expr) and dim.right.op in _INFIX else right
    return f"{left} {sign} {right}"


def to_json(dim: Dim) -> ExprJson:
    if isinstance(dim, int):
        return dim
    return "m" if dim.op == "m" else [dim.op, to_json(dim.left), to_json(dim.right)]


def from_json(value: object) -> Dim:
    """The Dim that ``to_json`` wrote; ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value == "m":
        return M
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and value[0] in _OPERATORS:
        return Expr(value[0], from_json(value[1]), from_json(value[2]))
    raise ValueError(f"{value!r} is not an integer expression in m")
