"""Dataclasses for a kernel's loads and stores of shared and global memory, in a tree of its loops and branches.

A leaf, ``Site``, is one load, store or copy in the TensorIR: its buffer, address and width. The inner nodes are loops,
branches and register assignments, from which follow how often a site is executed and by which lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tirgemm.analysis.ir.expressions import IrExpr

SiteSpace = Literal["shared", "global", "distributed"]
Op = Literal["load", "store", "atomic", "ldmatrix", "stmatrix", "copy", "bulk", "matrix"]
"""``copy`` is cp.async, a site in global and one in shared memory; ``bulk`` is TMA and ``matrix`` wgmma, which reach
shared memory past the load/store unit."""

# How the detail of what TMA writes to more than one block at once ends.
TO_SEVERAL = " to several blocks"
LSU: frozenset[str] = frozenset({"load", "store", "atomic", "ldmatrix", "stmatrix", "copy"})
"""Operations of the load/store unit, which take addresses lane by lane."""


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """One access of the IR.

    ``order``: place in the source. ``buffer``: its name in the IR; ``operand``: the tensors whose data it moves, sorted
    and joined by ``+``. ``width``: bytes a lane; of ldmatrix and stmatrix those of the row that a lane names.
    ``address`` in bytes from the start of shared memory or of the tensor. ``guards`` must all hold for a lane to take
    part, besides the conditions around it. ``matrices`` and ``transposed`` are ldmatrix's and stmatrix's. ``source``:
    of the shared side of a copy, the global address. ``detail``: what else is to be said, for TMA and wgmma their shape
    and swizzle. ``tensor_map``: of TMA, which descriptor's box it moves.
    """

    order: int
    buffer: str
    operand: str
    space: SiteSpace
    op: Op
    width: int
    address: IrExpr
    guards: tuple[IrExpr, ...] = ()
    matrices: int = 0
    transposed: bool = False
    source: IrExpr | None = None
    detail: str = ""
    tensor_map: str = ""

    @property
    def instruction(self) -> str:
        """The operation with what else tells one instruction from another: ``ldmatrix.x4.trans``."""
        return f"{self.op}.x{self.matrices}{'.trans' if self.transposed else ''}" if self.matrices else self.op

    @property
    def reads(self) -> bool:
        """Whether memory of ``space`` is read: by loads, and by the global side of a copy."""
        return self.op in ("load", "ldmatrix", "matrix") or (self.op in ("copy", "bulk") and self.space == "global")


@dataclass(frozen=True, eq=False, slots=True)
class Assign:
    """A register, on which addresses, conditions or trip counts may depend, takes a value."""

    register: str
    value: IrExpr


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """A counted loop from 0; ``variable`` is its symbol."""

    variable: str
    extent: IrExpr
    body: Statements


@dataclass(frozen=True, eq=False, slots=True)
class While:
    condition: IrExpr
    body: Statements


@dataclass(frozen=True, eq=False, slots=True)
class If:
    condition: IrExpr
    then: Statements
    otherwise: Statements


Statement: TypeAlias = "Site | Assign | Loop | While | If"
Statements: TypeAlias = "tuple[Statement, ...]"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something in the IR or the machine code that is not modelled: its name, and in a sentence what that leaves
    out."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, eq=False, slots=True)
class Tree:
    """A kernel: what it does to memory, and what of it is not modelled."""

    body: Statements
    unknown: tuple[Unknown, ...] = ()


def bodies_of(statement: Statement) -> tuple[Statements, ...]:
    """The statements within a statement: of an If both branches, of a loop its body."""
    if isinstance(statement, If):
        return statement.then, statement.otherwise
    return (statement.body,) if isinstance(statement, (Loop, While)) else ()


def sites_of(body: Statements) -> tuple[Site, ...]:
    """Every site of ``body``, in the order of the source."""
    sites: list[Site] = []
    for statement in body:
        if isinstance(statement, Site):
            sites.append(statement)
        for inner in bodies_of(statement):
            sites += sites_of(inner)
    return tuple(sites)
