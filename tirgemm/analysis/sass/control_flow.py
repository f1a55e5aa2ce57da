"""Basic blocks and natural loops over the instructions of one function, addressed by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions ``start`` to ``stop`` (positions, half-open) that run one after another; ``successors`` are blocks.

    ``loops`` are the loops around it, outermost first; ``reachable`` is false for what no path from the entry reaches
    (padding behind the last EXIT).
    """

    index: int
    start: int
    stop: int
    successors: tuple[int, ...]
    loops: tuple[int, ...]
    reachable: bool


@dataclass(frozen=True, slots=True)
class NaturalLoop:
    """A natural loop: ``header`` block, every block of it, the blocks that jump back, and its depth from 1."""

    index: int
    header: int
    blocks: frozenset[int]
    latches: tuple[int, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Flow:
    """What ends blocks, by position: ``jumps`` to other positions, ``stops`` behind which control does not just go on,
    and the ``labels`` that something may jump to.
    """

    jumps: Mapping[int, tuple[int, ...]]
    stops: frozenset[int]
    labels: frozenset[int]


def blocks_of(count: int, flow: Flow) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """(start, stop, successors) of every basic block of ``count`` instructions."""
    leaders = {0, *flow.labels}
    for position, targets in flow.jumps.items():
        leaders |= {position + 1, *targets}
    leaders |= {position + 1 for position in flow.stops}
    starts = sorted(p for p in leaders if p < count)
    at = {start: index for index, start in enumerate(starts)}
    blocks = []
    for index, start in enumerate(starts):
        stop = starts[index + 1] if index + 1 < len(starts) else count
        following = list(flow.jumps.get(stop - 1, ()))
        if stop - 1 not in flow.stops and stop < count:
            following.append(stop)
        blocks.append((start, stop, tuple(dict.fromkeys(at[position] for position in following))))
    return tuple(blocks)


def dominators(successors: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """The immediate dominator of every block reachable from block 0 (its own for block 0).

    Source: Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm".
    """
    order = _reverse_postorder(successors)
    rank = {block: index for index, block in enumerate(order)}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for successor in successors[block]:
            before[successor].append(block)
    parent = {0: 0}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [p for p in before[block] if p in parent]
            new = known[0]
            for other in known[1:]:
                new = _meet(new, other, parent, rank)
            if parent.get(block) != new:
                parent[block] = new
                changed = True
    return parent


def natural_loops(successors: Sequence[tuple[int, ...]]) -> tuple[NaturalLoop, ...]:
    """The loops, outer ones before those within. Jumps back to blocks that do not dominate make none."""
    parent = dominators(successors)
    before: dict[int, list[int]] = {}
    for block in parent:
        for successor in successors[block]:
            before.setdefault(successor, []).append(block)
    rank = {block: index for index, block in enumerate(_reverse_postorder(successors))}
    bodies: dict[int, tuple[set[int], list[int]]] = {}
    for block in parent:
        for successor in successors[block]:
            if rank[successor] > rank[block] or not dominates(successor, block, parent):
                continue
            body, latches = bodies.setdefault(successor, ({successor}, []))
            latches.append(block)
            pending = [block]
            while pending:
                at = pending.pop()
                if at not in body:
                    body.add(at)
                    pending += before[at]
    headers = sorted(bodies, key=lambda header: (-len(bodies[header][0]), header))
    loops: list[NaturalLoop] = []
    for index, header in enumerate(headers):
        around = [loop for loop in loops if header in loop.blocks]
        depth = 1 + max((loop.depth for loop in around), default=0)
        body, latches = bodies[header]
        loops.append(NaturalLoop(index, header, frozenset(body), tuple(sorted(latches)), depth))
    return tuple(loops)


def nest_of(block: int, loops: Sequence[NaturalLoop]) -> tuple[int, ...]:
    """The loops around ``block``, outermost first."""
    return tuple(loop.index for loop in sorted(loops, key=lambda loop: loop.depth) if block in loop.blocks)


def reachable(successors: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """The blocks that some path from block 0 reaches."""
    return frozenset(_reverse_postorder(successors))


def _reverse_postorder(successors: Sequence[tuple[int, ...]]) -> list[int]:
    seen, order = {0}, []
    stack = [(0, iter(successors[0]))]
    while stack:
        block, rest = stack[-1]
        following = next((s for s in rest if s not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    return order[::-1]


def _meet(left: int, right: int, parent: Mapping[int, int], rank: Mapping[int, int]) -> int:
    while left != right:
        while rank[left] > rank[right]:
            left = parent[left]
        while rank[right] > rank[left]:
            right = parent[right]
    return left


def dominates(above: int, block: int, parent: Mapping[int, int]) -> bool:
    """Whether every path to ``block`` passes ``above``; ``parent`` are the immediate dominators of reachable blocks."""
    while block != above and parent[block] != block:
        block = parent[block]
    return block == above
