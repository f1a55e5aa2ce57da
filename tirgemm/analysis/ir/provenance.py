"""Provenance of shared tiles: the tensors whose elements are copied into each buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tirgemm.analysis.ir.sites import If, Loop, Site, Statements, While

if TYPE_CHECKING:
    from collections.abc import Iterable

# What is added to sums in registers: a tile in shared memory that it flows into is D's.
_ADDED = {"c", "bias"}


class Provenance:
    """Gathers flows between buffers during the visit of a PrimFunc, then names the tensors of every site."""

    def __init__(self) -> None:
        self.tensors: dict[Any, str] = {}
        self.sources: dict[Any, set[Any]] = {}
        self.buffers: dict[Site, tuple[Any, ...]] = {}
        self.targets: dict[Any, set[Any]] | None = None

    def alias(self, buffer: Any, tensor: str | None) -> None:
        """``buffer`` is the memory of ``tensor``."""
        if tensor is not None:
            self.tensors[buffer] = tensor

    def flow(self, target: Any, value: Any) -> None:
        """What ``value`` reads may now be in ``target``."""
        self.sources.setdefault(target, set()).update(read_by(value))

    def move(self, target: Any, sources: Iterable[Any]) -> None:
        """The memory of ``sources`` may now be in ``target``."""
        self.sources.setdefault(target, set()).update(s for s in sources if s is not None)

    def touch(self, site: Site, buffer: Any, owners: Iterable[Any] = ()) -> None:
        """``site`` moves the data of ``buffer``, or of ``owners`` where they are given."""
        self.buffers[site] = tuple(owners) or (buffer,)

    def named(self, body: Statements) -> Statements:
        """``body`` with the operand of every site."""
        return tuple(self._named(statement) for statement in body)

    def _named(self, statement: Any) -> Any:
        if isinstance(statement, Site):
            added = set() if statement.space == "global" else _ADDED
            return replace(statement, operand="+".join(sorted(self._of(self.buffers.get(statement, ()), added))))
        if isinstance(statement, If):
            return replace(statement, then=self.named(statement.then), otherwise=self.named(statement.otherwise))
        if isinstance(statement, (Loop, While)):
            return replace(statement, body=self.named(statement.body))
        return statement

    def _of(self, buffers: tuple[Any, ...], added: set[str]) -> set[str]:
        """The tensors from which buffers are filled; where there are none but those ``added`` to sums, the ones that
        are filled from them."""
        return self._reached(buffers, self.sources) - added or self._reached(buffers, self._targets())

    def _targets(self) -> dict[Any, set[Any]]:
        if self.targets is None:
            self.targets = {}
            for target, sources in self.sources.items():
                for source in sources:
                    self.targets.setdefault(source, set()).add(target)
        return self.targets

    def _reached(self, buffers: tuple[Any, ...], ways: dict[Any, set[Any]]) -> set[str]:
        seen: set[Any] = set()
        tensors: set[str] = set()
        ahead = list(buffers)
        while ahead:
            at = ahead.pop()
            if at is None or at in seen:
                continue
            seen.add(at)
            if at in self.tensors:
                tensors.add(self.tensors[at])
            else:
                ahead += ways.get(at, ())
        return tensors


def read_by(node: Any) -> set[Any]:
    """The buffers and variables that an expression reads, but not those that only address."""
    kind = type(node).__name__
    if kind == "TensorLoad":
        return {node.source}
    if kind == "Var":
        return {node}
    if kind == "Call":
        args = list(node.args)
        return set().union(*(read_by(a) for a in (args[1:] if "if_then_else" in str(node.op) else args)))
    if kind == "Select":
        return read_by(node.true_value) | read_by(node.false_value)
    read: set[Any] = set()
    for name in ("a", "b", "value"):
        child = getattr(node, name, None)
        if child is not None and hasattr(child, "ty"):
            read |= read_by(child)
    return read
