"""Comparison of two builds' machine code, and the instructions of the main loop."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tirgemm.analysis.sass.program import Function, Instruction, disassemble

EQUAL, REORDERED, DIFFERENT = "equal", "reordered", "different"
# Registers of every kind, and flags that say nothing of what is computed.
_REGISTER = re.compile(r"\b(?:UR|UP|R|P|B|SB)\d+\b")


@dataclass(frozen=True, slots=True)
class Code:
    """One kernel's machine code: its text, one line an instruction, and how often each opcode occurs in its main loop.

    The main loop is the innermost one with the most FMAs; a kernel without a loop has none, and its whole text counts.
    """

    text: tuple[str, ...]
    loop: tuple[tuple[str, int], ...]

    @property
    def fmas(self) -> int:
        """FMAs of a thread in one pass of the main loop, two of a packed pair counted as two."""
        return sum(count * (2 if name.startswith("HFMA2") else 1) for name, count in self.loop if _is_fma(name))

    @property
    def fma_share(self) -> float:
        """FMA instructions among the instructions of the main loop."""
        total = sum(count for _, count in self.loop)
        return sum(count for name, count in self.loop if _is_fma(name)) / total if total else 0.0

    def loads_per_fma(self, opcode: str) -> float:
        """Instructions ``LDS`` or ``LDG`` (with ``LDGSTS``) of the main loop for one of its FMAs."""
        count_of = sum(count for name, count in self.loop if name.split(".")[0].startswith(opcode))
        return count_of / self.fmas if self.fmas else 0.0

    @property
    def instructions(self) -> Counter[str]:
        """How often each instruction occurs, whatever its place and its registers; immediates and offsets count."""
        return Counter(_REGISTER.sub("_", line.partition(": ")[2]) for line in self.text)

    def beside(self, parent: Code) -> str:
        """Equal line by line; the same instructions in another order or with other registers; or different."""
        if self.text == parent.text:
            return EQUAL
        return REORDERED if self.instructions == parent.instructions else DIFFERENT


def machine_code(cubin: bytes) -> Code:
    """The code of a cubin of one kernel. Raises MissingExtra without nvdisasm, AnalysisFailed."""
    (function,) = disassemble(cubin)
    return Code(tuple(map(str, function.instructions)), _counted(_main_loop(function)))


def _main_loop(function: Function) -> tuple[Instruction, ...]:
    bodies = [tuple(i for i in function.executed if i.block in loop.blocks) for loop in function.loops]
    return max(bodies or [function.executed], key=lambda body: (sum(_is_fma(i.name) for i in body), -len(body)))


def _is_fma(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in ("FFMA", "HFMA2", "HFMA")


def _counted(instructions: tuple[Instruction, ...]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(instruction.name for instruction in instructions).items()))
