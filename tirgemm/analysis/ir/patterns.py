"""Equivalence classes of a site's requests with their counts, without enumerating iterations.

Blocks, warps and iterations of loops are dimensions that mostly shift an address by whole lines of banks or sectors,
and leave conditions as they are. Values of a dimension that no term of the address (modulo 128 bytes) and no
comparison can tell apart are one class; one of each is evaluated, lane by lane, and weighted with how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirgemm.analysis.ir.expressions import (
    COMPARISONS,
    LANE,
    IrExpr,
    IrValue,
    comparisons,
    evaluate,
    linear,
    make,
    maximal,
)
from tirgemm.analysis.ir.sites import Site

LINE = 128
LANES = 32
# Requests of one site that are evaluated at most; beyond, dimensions are sampled evenly.
MOST_REQUESTS = 1 << 16
# A prime: powers of two would cancel in hashes.
_FAR = (1 << 62) - 57

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Dimension:
    """One dimension of a site's requests: its symbols' values, as arrays of shape (n, 1) or (n, 32), and their
    weights."""

    values: Mapping[str, IrValue]
    weights: Integers

    @property
    def size(self) -> int:
        return len(self.weights)


@dataclass(frozen=True, eq=False, slots=True)
class Requests:
    """Requests [n, 32] of a site and how often each occurs.

    ``sources``: the global addresses that a copy to shared memory reads, banks.NOWHERE where it writes zeros.
    ``sampled``: counts are scaled up from a part.
    """

    addresses: Integers
    active: Flags
    weights: NDArray[np.int64] | NDArray[np.floating[Any]]
    sources: Integers | None = None
    sampled: bool = False


def requests_of(site: Site, conditions: Sequence[IrExpr], dimensions: Sequence[Dimension]) -> Requests:
    """The requests of ``site`` over the product of ``dimensions`` where ``conditions`` and its guards hold.

    Those of which no lane is active are left out. Raises DataDependent.
    """
    guards = [g for g in (*conditions, *site.guards) if g.kind != "const" or not g.value]
    if any(g.kind == "const" for g in guards):
        return Requests(np.zeros((0, LANES), np.int64), np.zeros((0, LANES), np.bool_), np.zeros(0, np.int64))
    addresses = [site.address] if site.source is None else [site.address, site.source]
    reduced = [_reduced(number, addresses, guards, dimensions) for number in range(len(dimensions))]
    sampled = False
    while math.prod(d.size for d in reduced) > MOST_REQUESTS:
        largest = max(range(len(reduced)), key=lambda n: reduced[n].size)
        reduced[largest], sampled = _sampled(reduced[largest]), True
    shape = (*(d.size for d in reduced), LANES)
    environment: dict[str, IrValue] = {LANE: np.arange(LANES)}
    weights = np.ones((), dtype=np.int64)
    for number, dimension in enumerate(reduced):
        behind = (1,) * (len(reduced) - 1 - number)
        for name, value in dimension.values.items():
            environment[name] = value if np.ndim(value) == 0 or isinstance(value, str) else _spread(value, behind)
        weights = weights[..., None] * dimension.weights
    memo: dict[int, IrValue] = {}
    active = np.broadcast_to(np.asarray(True), shape)
    for guard in guards:
        active = active & np.asarray(evaluate(guard, environment, memo), dtype=np.bool_)
    at = np.broadcast_to(np.asarray(evaluate(site.address, environment, memo), dtype=np.int64), shape)
    rows = active.reshape(-1, LANES)
    some = rows.any(axis=1)
    sources = None
    if site.source is not None:
        origin = np.asarray(evaluate(site.source, environment, memo), dtype=np.int64)
        sources = np.broadcast_to(origin, shape).reshape(-1, LANES)[some]
    counts = np.broadcast_to(weights, shape[:-1]).reshape(-1)[some]
    return Requests(at.reshape(-1, LANES)[some], rows[some], counts, sources, sampled)


def _spread(value: IrValue, behind: tuple[int, ...]) -> IrValue:
    """Values [n, 1 or 32] on their axis, with the axes of later dimensions between."""
    return value.reshape(value.shape[0], *behind, value.shape[1])


def _sampled(dimension: Dimension) -> Dimension:
    chosen = np.unique(np.linspace(0, dimension.size - 1, max(1, dimension.size // 2)).astype(np.int64))
    total = int(dimension.weights.sum())
    weights = dimension.weights[chosen].astype(np.float64)
    weights *= total / weights.sum()
    return _taken(dimension, chosen, np.rint(weights).astype(np.int64))


def _taken(dimension: Dimension, chosen: Integers, weights: Integers) -> Dimension:
    values = {
        name: value[chosen] if np.ndim(value) and len(value) == dimension.size else value
        for name, value in dimension.values.items()
    }
    return Dimension(values, weights)


def _reduced(
    number: int, addresses: Sequence[IrExpr], guards: Sequence[IrExpr], dimensions: Sequence[Dimension]
) -> Dimension:
    """Dimension ``number`` with one value of each class."""
    mine = dimensions[number]
    if mine.size == 1:
        return mine
    keys = _Keys(number, dimensions)
    for address in addresses:
        keys.address(address)
    for guard in guards:
        for comparison in comparisons(guard):
            keys.condition(comparison)
    if keys.hash is None:
        return _taken(mine, np.zeros(1, np.int64), mine.weights.sum(keepdims=True))
    _, first, inverse = np.unique(keys.hash, return_index=True, return_inverse=True)
    weights = np.zeros(len(first), np.int64)
    np.add.at(weights, inverse.reshape(-1), mine.weights)
    return _taken(mine, first.astype(np.int64), weights)


class _Keys:
    """What tells the values of one dimension apart, hashed value by value."""

    def __init__(self, number: int, dimensions: Sequence[Dimension]) -> None:
        self.mine, self.all = dimensions[number], dimensions
        self.names = frozenset(self.mine.values)
        self.known = {name: value for d in dimensions for name, value in d.values.items()}
        self.environment = {**self.mine.values, LANE: np.arange(LANES)[None, :]}
        self.memo: dict[int, IrValue] = {}
        self.hash: NDArray[np.uint64] | None = None

    def address(self, expr: IrExpr, factor: int = 1, *, all_lanes: bool = True) -> None:
        """Values that shift an address by whole lines are equal, where they shift it for all lanes."""
        _, atoms = linear(expr, factor)
        own = {a: f for a, f in atoms.items() if a.symbols & self.names}
        plain = {a: f for a, f in own.items() if self.separate(a)}
        if plain:
            shift = np.asarray(sum(self.value(a) * f for a, f in plain.items()))
            first = shift[..., :1] if shift.ndim else shift
            self.add(first % LINE if all_lanes else first)
            if shift.ndim and shift.shape[-1] > 1:
                self.add(shift - first)
        for atom, count in own.items():
            if atom in plain:
                continue
            if atom.kind == "select":
                for comparison in comparisons(atom.args[0]):
                    self.condition(comparison)
                self.address(atom.args[1], count, all_lanes=False)
                self.address(atom.args[2], count, all_lanes=False)
            else:
                self.raw(atom)

    def condition(self, expr: IrExpr) -> None:
        """Values that put both sides of a comparison equally far apart, or so far that the rest cannot matter, are
        equal."""
        if not expr.symbols & self.names:
            return
        if expr.kind not in COMPARISONS:
            self.raw(expr)
            return
        constant, atoms = linear(make("sub", *expr.args))
        own = {a: f for a, f in atoms.items() if a.symbols & self.names}
        if not all(self.separate(a) for a in own):
            self.raw(expr)
            return
        low, high = self.range({a: f for a, f in atoms.items() if a not in own})
        value = np.asarray(sum(self.value(a) * f for a, f in own.items()) + constant)
        if expr.kind in ("lt", "le"):
            # Below the first every lane of every other dimension has the answer yes, above the second no.
            bound = 0 if expr.kind == "lt" else 1
            value = np.where(value + high < bound, -_FAR, np.where(value + low >= bound, _FAR, value))
        else:
            value = np.where((value + high < 0) | (value + low > 0), _FAR, value)
        self.add(value)

    def separate(self, atom: IrExpr) -> bool:
        """Whether an atom depends on this dimension and the lane alone."""
        return atom.symbols <= self.names | {LANE}

    def raw(self, expr: IrExpr) -> None:
        """Nothing is known of what the expression does with this dimension: its values count as they are."""
        for part in maximal(expr, lambda symbols: bool(symbols & self.names) and symbols <= self.names | {LANE}):
            self.add(np.asarray(self.value(part)))

    def range(self, atoms: Mapping[IrExpr, int]) -> tuple[int, int]:
        """Bounds of a sum over the other dimensions and the lanes."""
        low = high = 0
        environment = {**self.known, LANE: np.arange(LANES)}
        for atom, factor in atoms.items():
            homes = [d for d in self.all if atom.symbols & frozenset(d.values)]
            if len(homes) > 1:
                return -_FAR, _FAR
            value = np.asarray(evaluate(atom, environment)) * factor
            low, high = low + int(value.min()), high + int(value.max())
        return low, high

    def value(self, expr: IrExpr) -> IrValue:
        return np.asarray(evaluate(expr, self.environment, self.memo), dtype=np.int64)

    def add(self, value: IrValue) -> None:
        """Hash a key [n, 1 or 32] into the others."""
        rows = np.asarray(value, dtype=np.int64)
        if rows.ndim < 2 or rows.shape[0] == 1:
            return
        with np.errstate(over="ignore"):
            words = rows.astype(np.uint64)
            word = _mixed(words[:, 0] if rows.shape[1] == 1 else words @ _ODD)
            self.hash = word if self.hash is None else _mixed(self.hash * np.uint64(0x9E3779B97F4A7C15) + word)


_ODD = np.random.default_rng(7).integers(1, 1 << 62, LANES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finisher: keys that differ have hashes that differ, but for chances of 2^-64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
