"""What two builds' machine code have in common, and what the loop that does the work is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tirgemm.analysis.sass import Function, Instruction, disassemble

EQUAL, SAME_OPCODES, DIFFERENT = "equal", "same opcodes", "different"


@dataclass(frozen=True, slots=True)
class Code:
    """One kernel's machine code: its text, how often each opcode occurs, and the same of its main loop.

    The main loop is the innermost one with the most FMAs; a kernel without a loop has none, and its whole text counts.
    """

    text: tuple[str, ...]
    opcodes: tuple[tuple[str, int], ...]
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
        found = sum(count for name, count in self.loop if name.split(".")[0].startswith(opcode))
        return found / self.fmas if self.fmas else 0.0

    def beside(self, parent: Code) -> str:
        """Equal instruction for instruction; the same opcodes in the main loop and overall, or different."""
        if self.text == parent.text:
            return EQUAL
        return SAME_OPCODES if (self.opcodes, self.loop) == (parent.opcodes, parent.loop) else DIFFERENT


def machine_code(cubin: bytes) -> Code:
    """The code of a cubin of one kernel. Raises MissingExtra without nvdisasm, AnalysisFailed."""
    (function,) = disassemble(cubin)
    executed = function.executed
    return Code(
        tuple(str(instruction) for instruction in function.instructions),
        _counted(executed),
        _counted(_main_loop(function)),
    )


def _main_loop(function: Function) -> tuple[Instruction, ...]:
    bodies = [tuple(i for i in function.executed if i.block in loop.blocks) for loop in function.loops]
    return max(bodies or [function.executed], key=lambda body: (sum(_is_fma(i.name) for i in body), -len(body)))


def _is_fma(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in ("FFMA", "HFMA2", "HFMA")


def _counted(instructions: tuple[Instruction, ...]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(instruction.name for instruction in instructions).items()))
