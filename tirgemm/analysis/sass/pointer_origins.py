"""Origin of an address register: the kernel parameters that it is computed from, by data flow."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tirgemm.analysis.sass.program import Function, Instruction
from tirgemm.launch import KernelLaunch, Pointer, Scalar, Size, TensorMap

# Where a kernel's parameters begin in constant bank 0.
_FIRST = {"sm_75": 0x160, "sm_80": 0x160, "sm_86": 0x160, "sm_89": 0x160, "sm_90a": 0x210, "sm_90": 0x210}
_CONSTANT = re.compile(r"c\[0x0\]\[0x([0-9a-f]+)\]")
_REGISTER = re.compile(r"\b(U?R)(\d+)\b")
_MOST_STEPS = 4000


class Origins:
    """The pointers of one function's addresses."""

    def __init__(self, function: Function, kernel: KernelLaunch) -> None:
        self.function = function
        self.pointers = _pointers(kernel, _FIRST.get(function.arch, 0))
        self.before: dict[int, list[int]] = {}
        self.written: dict[tuple[int, str], list[int]] = {}
        for block in function.blocks:
            for successor in block.successors:
                self.before.setdefault(successor, []).append(block.index)
            for position in range(block.start, block.stop):
                for register in _written(function.instructions[position]):
                    self.written.setdefault((block.index, register), []).append(position)
        self.at = {i.address: n for n, i in enumerate(function.instructions)}
        self.known: dict[int, str] = {}

    def of(self, instruction: Instruction) -> str:
        """The one tensor that the global address of ``instruction`` points into; empty where that is not plain."""
        memory = instruction.memory
        address = None if memory is None else memory.source if memory.kind == "copy" else memory.address
        if address is None:
            return ""
        if instruction.address not in self.known:
            registers = [name for r in address.registers for name in _names(r)]
            tensors = self.reached(self.at[instruction.address], registers)
            self.known[instruction.address] = next(iter(tensors)) if len(tensors) == 1 else ""
        return self.known[instruction.address]

    def reached(self, position: int, registers: Iterable[str]) -> set[str]:
        """The pointers from which ``registers`` at ``position`` may be computed."""
        tensors: set[str] = set()
        seen: set[tuple[int, str]] = set()
        ahead = [(self.function.instructions[position].block, position, register) for register in registers]
        for _ in range(_MOST_STEPS):
            if not ahead:
                return tensors
            index, stop, register = ahead.pop()
            definite = False
            for at in reversed(self.written.get((index, register), ())):
                if at >= stop:
                    continue
                instruction = self.function.instructions[at]
                tensors |= {self.pointers[n] for n in _constants(instruction) if n in self.pointers}
                if instruction.memory is None or instruction.memory.space == "constant":
                    ahead += [(index, at, name) for name in _sources(instruction) if (at, name) not in seen]
                    seen |= {(at, name) for name in _sources(instruction)}
                if not instruction.predicate:
                    definite = True
                    break
            if not definite:
                for previous in self.before.get(index, ()):
                    if (-previous - 1, register) not in seen:
                        seen.add((-previous - 1, register))
                        ahead.append((previous, self.function.blocks[previous].stop, register))
        return set()


def _pointers(kernel: KernelLaunch, first: int) -> dict[int, str]:
    """Byte in constant bank 0 -> tensor, of every pointer parameter."""
    at, names = first, {}
    for param in kernel.params:
        size = 8 if isinstance(param, Pointer) else 128 if isinstance(param, TensorMap) else 4
        if isinstance(param, Size) and param.dtype == "i64":
            size = 8
        aligned = 64 if isinstance(param, TensorMap) else size
        at = -(-at // aligned) * aligned
        if isinstance(param, Pointer):
            names[at] = param.name
        assert isinstance(param, (Pointer, TensorMap, Scalar, Size))
        at += size
    return names


def _names(text: str) -> list[str]:
    return [f"{kind}{number}" for kind, number in _REGISTER.findall(text)]


def _written(instruction: Instruction) -> list[str]:
    """The registers that hold the instruction's result."""
    operands, memory = instruction.operands, instruction.memory
    if not operands or "[" in operands[0] or (memory is not None and memory.kind == "store"):
        return []
    match = _REGISTER.match(operands[0])
    if match is None:
        return []
    return [f"{match[1]}{int(match[2]) + n}" for n in range(_words(instruction))]


def _words(instruction: Instruction) -> int:
    if "WIDE" in instruction.modifiers or "64" in instruction.modifiers:
        return 2
    return 4 if "128" in instruction.modifiers else 1


def _constants(instruction: Instruction) -> list[int]:
    return [int(n, 16) for operand in instruction.operands for n in _CONSTANT.findall(operand)]


def _sources(instruction: Instruction) -> list[str]:
    return [name for operand in instruction.operands[1:] for name in _names(operand)]
