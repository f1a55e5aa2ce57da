"""Opcode mix of a kernel: of its code, of its main loop, and as a warp executes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tirgemm.analysis.sass.opcodes import unit_of
from tirgemm.analysis.sass.program import Function, Instruction
from tirgemm.analysis.sass.trip_counts import trip_counts

_ARITHMETIC = ("tensor", "fp32", "fp16", "fp64")

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OpcodeMix:
    """Instructions by the unit that runs them (``units``), and of the main loop by unit and by name; most first.

    The main loop is the innermost one with the most arithmetic: tensor instructions where there are any. A kernel
    without a loop has none, and its ``loop_`` counts are empty. These counts are of the code, not of how often it runs.

    ``executed`` counts what a warp runs that takes every path, by unit (``executed_units``) and by name: each loop as
    often as it turns (``turns``: by the address of its first instruction), where its counter says so. Loops that only
    wait or elect lanes count once; so do those in ``once``, whose turns are not constants (the tiles of a block, say).
    """

    instructions: int
    units: Counts
    loop_instructions: int
    loop_units: Counts
    loop_opcodes: Counts
    executed: int
    executed_units: Counts
    executed_opcodes: Counts
    turns: tuple[tuple[str, int], ...]
    once: tuple[str, ...]


def opcode_mix(function: Function) -> OpcodeMix:
    """The mix of ``function``, of instructions that can run."""
    body = _main_loop(function)
    turns = trip_counts(function)
    idle = {loop.index for loop in function.loops if function.waits(loop) or function.is_elect_loop(loop)}
    unknown = [loop.index for loop in function.loops if loop.index not in turns and loop.index not in idle]
    weights = {**turns, **dict.fromkeys(unknown, 1)}
    units, names = function.units(weights), function.mix(weights)
    return OpcodeMix(
        len(function.executed),
        _counted(i.unit for i in function.executed),
        len(body),
        _counted(unit_of(i.opcode) for i in body),
        _counted(i.name for i in body),
        round(sum(names.values())),
        _sorted(units),
        _sorted(names),
        tuple((_address(function, index), number) for index, number in sorted(turns.items())),
        tuple(_address(function, index) for index in unknown),
    )


def _address(function: Function, loop: int) -> str:
    block = function.blocks[function.loops[loop].header]
    return f"{function.instructions[block.start].address:#x}"


def _main_loop(function: Function) -> tuple[Instruction, ...]:
    wanted = ("tensor",) if any(i.unit == "tensor" for i in function.executed) else _ARITHMETIC
    bodies = [
        tuple(i for i in function.executed if i.block in loop.blocks)
        for loop in function.loops
        if not function.waits(loop)
    ]
    return max(bodies, key=lambda body: (sum(i.unit in wanted for i in body), -len(body)), default=())


def _counted(names: Iterable[str]) -> Counts:
    return _sorted(Counter(names))


def _sorted(counts: Mapping[str, float]) -> Counts:
    return tuple(sorted(((name, round(n)) for name, n in counts.items()), key=lambda pair: (-pair[1], pair[0])))
