"""Loops of the machine code matched to loops of the IR, by the memory accesses of both.

A loop of the IR without one in the machine code was unrolled in full, or runs once; its accesses stand in the loop
around it, once for every turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from tirgemm.analysis.ir.sites import Loop, While
from tirgemm.analysis.ir.unrolled_copies import Access
from tirgemm.analysis.sass.program import Function, Instruction

InstructionKind = tuple[str, str]
"""Space and instruction (``Site.instruction``)."""
Label = tuple[str, str, str]
"""Space, operation and, where that is known of all such instructions, the tensor."""
# What as many operations count for beside the kinds of them: less than a loop's depth does.
_NEARER = 0.005
_IGNORED = ("barrier", "prefetch")


def kind_of(instruction: Instruction) -> InstructionKind | None:
    """Space and instruction of a memory instruction, as sites have them; None for what no site is (constants,
    barriers)."""
    memory = instruction.memory
    if memory is None or memory.space == "constant" or memory.kind in _IGNORED:
        return None
    if memory.matrices:
        op = "ldmatrix" if memory.kind == "load" else "stmatrix"
        return memory.space, f"{op}.x{memory.matrices}{'.trans' if memory.transposed else ''}"
    return memory.space, memory.kind


@dataclass(eq=False, slots=True)
class Node:
    """A loop with what it does to memory, all loops in it included. ``loop``: None for the whole kernel."""

    loop: Loop | While | int | None
    content: Counter[Label] = field(default_factory=Counter)
    inside: list[Node] = field(default_factory=list)

    def everything(self, depth: int = 0) -> list[tuple[Node, int]]:
        """The loops in it, each with how deep it is."""
        return [e for n in self.inside for e in ((n, depth), *n.everything(depth + 1))]


@dataclass(frozen=True, slots=True)
class Regions:
    """``kept``: the IR's loops that the machine code has; ``of``: loop of the machine code -> that of the IR."""

    kept: frozenset[Loop | While]
    of: dict[int, Loop | While]

    def access(self, access: Access) -> tuple[Loop | While | None, tuple[Loop, ...]]:
        """The loop in which an access stands in the machine code, and the loops inside of it that were written out."""
        written_out: list[Loop] = []
        for loop in reversed(access.loops):
            if loop in self.kept:
                return loop, tuple(written_out)
            if isinstance(loop, Loop) and loop.extent.kind == "const":
                written_out.append(loop)
        return None, tuple(written_out)

    def instruction(self, instruction: Instruction) -> Loop | While | None:
        return next((self.of[n] for n in reversed(instruction.loops) if n in self.of), None)


def regions(accesses: Sequence[Access], function: Function, tensors: Mapping[int, str]) -> Regions:
    """Match the loops of ``accesses`` with those of ``function``; ``tensors``: by address, that of an instruction."""
    pairs: dict[int, Loop | While] = {}
    compiled = _compiled(function, tensors)
    known = {(space, op) for space, op, tensor in compiled.content if tensor}
    _pair(_written(accesses, known), compiled, pairs)
    return Regions(frozenset(pairs.values()), pairs)


def _written(accesses: Sequence[Access], known: Container[InstructionKind]) -> Node:
    root = Node(None)
    nodes: dict[Loop | While | None, Node] = {None: root}
    for access in accesses:
        kind = access.first.space, access.first.instruction
        label = (*kind, access.first.operand if kind in known else "")
        times, around = len(access.sites), [None, *access.loops]
        for outer, loop in zip(around, access.loops, strict=False):
            if loop not in nodes:
                nodes[loop] = Node(loop)
                nodes[outer].inside.append(nodes[loop])
        if access.first.op == "copy" and access.first.space == "global":
            continue  # The shared side stands for the instruction.
        for place in reversed(around):
            nodes[place].content[label] += times
            if isinstance(place, Loop) and place.extent.kind == "const":
                times *= max(1, min(int(place.extent.value), 64))
    return root


def _compiled(function: Function, tensors: Mapping[int, str]) -> Node:
    root = Node(None)
    nodes: dict[int, Node] = {}
    idle = {loop.index for loop in function.loops if function.is_elect_loop(loop) or function.waits(loop)}
    for instruction in function.memory:
        kind = kind_of(instruction)
        if kind is None:
            continue
        label = (*kind, tensors.get(instruction.address, ""))
        root.content[label] += 1
        outer = root
        for number in instruction.loops:
            if number in idle:
                continue
            if number not in nodes:
                nodes[number] = Node(number)
                outer.inside.append(nodes[number])
            outer = nodes[number]
            outer.content[label] += 1
    return root


def _pair(written: Node, compiled: Node, pairs: dict[int, Loop | While]) -> None:
    """Give every loop in ``compiled`` the loop in ``written`` that is most like it, of those alike the one that does as
    many; equals go in order."""
    candidates = written.everything()
    used: set[int] = set()
    for inner in compiled.inside:
        scores = [
            (
                _alike(node.content, inner.content) * 0.99**depth
                + _NEARER * _near(node.content, inner.content)
                - (0.5 if n in used else 0.0),
                -n,
            )
            for n, (node, depth) in enumerate(candidates)
        ]
        if not scores or max(scores)[0] <= _NEARER - 0.5:
            continue
        chosen = -max(scores)[1]
        node = candidates[chosen][0]
        if _alike(node.content, inner.content) == 0:
            continue
        used.add(chosen)
        assert isinstance(inner.loop, int)
        assert isinstance(node.loop, (Loop, While))
        pairs[inner.loop] = node.loop
        _pair(node, inner, pairs)


def _alike(a: Counter[Label], b: Counter[Label]) -> float:
    """The cosine between two loops' operations, each count damped: unrolling changes how many there are, not which."""
    shared = sum(_damped(a[k]) * _damped(b[k]) for k in a.keys() & b.keys())
    return shared / (_length(a) * _length(b)) if shared else 0.0


def _near(a: Counter[Label], b: Counter[Label]) -> float:
    """How near two loops' numbers of operations are, as a share: tells a loop from another that does the same less
    often."""
    less, more = sorted((a.total(), b.total()))
    return less / more if more else 0.0


def _length(content: Counter[Label]) -> float:
    return float(sum(_damped(n) ** 2 for n in content.values()) ** 0.5)


def _damped(count: int) -> float:
    return float(count**0.25)
