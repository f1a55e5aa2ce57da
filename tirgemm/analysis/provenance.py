"""Whose data a buffer holds: which tensors flow into each shared tile, by what the statements copy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tirgemm.analysis.sites import Block, If, Loop, Site, While

if TYPE_CHECKING:
    from collections.abc import Iterable


class Provenance:
    """Gathers flows between buffers during a walk, then names the tensors of every site."""

    def __init__(self) -> None:
        self.tensors: dict[Any, str] = {}
        self.sources: dict[Any, set[Any]] = {}
        self.buffers: dict[Site, Any] = {}
        self.targets: dict[Any, set[Any]] | None = None

    def alias(self, buffer: Any, tensor: str | None) -> None:
        """``buffer`` is the memory of ``tensor``."""
        if tensor is not None:
            self.tensors[buffer] = tensor

    def bind(self, variable: Any, value: Any) -> None:
        self.flow(variable, value)

    def flow(self, target: Any, value: Any) -> None:
        """What ``value`` reads may now be in ``target``."""
        self.sources.setdefault(target, set()).update(_read(value))

    def move(self, target: Any, sources: Iterable[Any]) -> None:
        """The memory of ``sources`` may now be in ``target``."""
        self.sources.setdefault(target, set()).update(s for s in sources if s is not None)

    def touch(self, site: Site, buffer: Any) -> None:
        self.buffers[site] = buffer

    def named(self, body: Block) -> Block:
        """``body`` with the operand of every site."""
        return tuple(self._named(statement) for statement in body)

    def _named(self, statement: Any) -> Any:
        if isinstance(statement, Site):
            return replace(statement, operand="+".join(sorted(self._of(self.buffers.get(statement)))))
        if isinstance(statement, If):
            return replace(statement, then=self.named(statement.then), otherwise=self.named(statement.otherwise))
        if isinstance(statement, (Loop, While)):
            return replace(statement, body=self.named(statement.body))
        return statement

    def _of(self, buffer: Any) -> set[str]:
        """The tensors from which a buffer is filled; where there are none, those that are filled from it."""
        return self._reached(buffer, self.sources) or self._reached(buffer, self._targets())

    def _targets(self) -> dict[Any, set[Any]]:
        if self.targets is None:
            self.targets = {}
            for target, sources in self.sources.items():
                for source in sources:
                    self.targets.setdefault(source, set()).add(target)
        return self.targets

    def _reached(self, buffer: Any, ways: dict[Any, set[Any]]) -> set[str]:
        seen: set[Any] = set()
        found: set[str] = set()
        ahead = [buffer]
        while ahead:
            at = ahead.pop()
            if at is None or at in seen:
                continue
            seen.add(at)
            if at in self.tensors:
                found.add(self.tensors[at])
            else:
                ahead += ways.get(at, ())
        return found


def _read(node: Any) -> set[Any]:
    """The buffers and variables that an expression reads, but not those that only address."""
    kind = type(node).__name__
    if kind == "TensorLoad":
        return {node.source}
    if kind == "Var":
        return {node}
    if kind == "Call":
        args = list(node.args)
        return set().union(*(_read(a) for a in (args[1:] if "if_then_else" in str(node.op) else args)))
    if kind == "Select":
        return _read(node.true_value) | _read(node.false_value)
    found: set[Any] = set()
    for name in ("a", "b", "value"):
        child = getattr(node, name, None)
        if child is not None and hasattr(child, "ty"):
            found |= _read(child)
    return found
