"""What a kernel's machine code is made of, as a whole and in the loop that does the arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tirgemm.analysis.opcodes import unit_of
from tirgemm.analysis.sass import Function, Instruction

_ARITHMETIC = ("tensor", "fp32", "fp16", "fp64")

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OpcodeMix:
    """Instructions by the unit that runs them (``units``), and of the main loop by unit and by name; most first.

    The main loop is the innermost one with the most arithmetic: tensor instructions where there are any. A kernel without
    a loop has none, and its ``loop_`` counts are empty. Counts are of the code, not of how often it runs.
    """

    instructions: int
    units: Counts
    loop_instructions: int
    loop_units: Counts
    loop_opcodes: Counts

    def share(self, unit: str) -> float:
        """Instructions of ``unit`` among those of the main loop; 0 where there is none."""
        return dict(self.loop_units).get(unit, 0) / self.loop_instructions if self.loop_instructions else 0.0


def opcode_mix(function: Function) -> OpcodeMix:
    """The mix of ``function``, of instructions that can run."""
    body = _main_loop(function)
    return OpcodeMix(
        len(function.executed),
        _counted(i.unit for i in function.executed),
        len(body),
        _counted(unit_of(i.opcode) for i in body),
        _counted(i.name for i in body),
    )


def _main_loop(function: Function) -> tuple[Instruction, ...]:
    wanted = ("tensor",) if any(i.unit == "tensor" for i in function.executed) else _ARITHMETIC
    bodies = [
        tuple(i for i in function.executed if i.block in loop.blocks)
        for loop in function.loops
        if not function.waits(loop)
    ]
    return max(bodies, key=lambda body: (sum(i.unit in wanted for i in body), -len(body)), default=())


def _counted(names: Iterable[str]) -> Counts:
    counts = Counter(names)
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
