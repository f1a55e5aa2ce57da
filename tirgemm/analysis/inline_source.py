"""What a function of inline source does to memory, from the PTX in it: the families wrap single instructions so.

Read are ``asm`` statements whose operands are parameters, or parameters made addresses of shared memory. What a
function does in C++ beyond that is not seen, so that a pointer that no understood instruction takes makes it unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_SIGNATURE = r"\b{name}\s*\(([^)]*)\)\s*\{{"
_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\((.*?)\)\s*;", re.DOTALL)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'"[=+&]*\w+"\s*\((?:\(\w+\)\s*)?([^()]*(?:\([^()]*\))?[^()]*)\)')
_ALIAS = re.compile(r"(\w+)\s*=\s*(?:\([^()]*\)\s*)*(?:__cvta_generic_to_shared\()?\s*(\w+)\s*\)?\s*;")
_CONVERTED = re.compile(r"__cvta_generic_to_shared\(\s*(\w+)\s*\)")
_LDMATRIX = re.compile(r"(ld|st)matrix\S*?\.x([124])(\.trans)?\S*\.b16")
_COPY = re.compile(r"cp\.async\.c[ag]\S*\s*\[%(\d+)\],\s*\[%(\d+)\],\s*(\d+)(?:,\s*%(\d+))?")
_PLAIN = re.compile(r"\b(ld|st)\.(?:\w+\.)*?(shared|global)\S*?(?:\.(v[24]))?\.([bfsu]\d+)\b")
_ADDRESS = re.compile(r"\[%(\d+)(?:\s*\+\s*(\d+))?\]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One access of a function: ``pointer`` and ``source`` are positions of parameters, ``size`` that of the bytes that a
    copy reads (-1: all). ``op`` and ``space`` as of sites; of a copy ``space`` is where it writes."""

    op: str
    space: str
    width: int
    pointer: int
    source: int = -1
    size: int = -1
    matrices: int = 0
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """The accesses of a function, and the instructions of it that are not understood."""

    instructions: tuple[Instruction, ...]
    unknown: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def function(name: str, source: str) -> Function | None:
    """What ``name`` does, whose definition is in ``source``; None where it is not there."""
    found = re.search(_SIGNATURE.format(name=re.escape(name)), source)
    if found is None:
        return None
    parameters = [p.split("=")[0].strip().split()[-1].lstrip("*&") for p in found[1].split(",") if p.strip()]
    body = _body(source, found.end())
    aliases = dict(_ALIAS.findall(body))
    instructions: list[Instruction] = []
    unknown: list[str] = []
    for statement in _ASM.findall(_joined(body)):
        text, *rest = _parts(statement)
        operands = [_position(o, parameters, aliases) for part in rest for o in _OPERAND.findall(part)]
        for line in filter(None, (x.strip() for x in re.split(r";|\\n", text))):
            made = _instruction(line, operands)
            if made is not None:
                instructions.append(made)
            elif "[" in line:
                unknown.append(line.split()[0])
    return Function(tuple(instructions), tuple(unknown))


def _body(source: str, start: int) -> str:
    depth, at = 1, start
    while at < len(source) and depth:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return source[start : at - 1]


def _joined(body: str) -> str:
    """``body`` with adjacent string literals as one."""
    return re.sub(r'"\s*\n?\s*"', "", body)


def _parts(statement: str) -> list[str]:
    """Text, outputs and inputs of an asm statement."""
    text = _TEXT.match(statement.strip())
    if text is None:
        return [""]
    return [text[1], *statement.strip()[text.end() :].split(":")[1:3]]


def _position(operand: str, parameters: list[str], aliases: dict[str, str]) -> int:
    """The parameter that an operand is, -1 for what is none."""
    converted = _CONVERTED.search(operand)
    name = converted[1] if converted else operand.strip()
    for _ in range(4):
        if name in parameters:
            return parameters.index(name)
        name = aliases.get(name, "")
    return -1


def _instruction(line: str, operands: list[int]) -> Instruction | None:
    def operand(number: str) -> int:
        return operands[int(number)] if int(number) < len(operands) else -1

    if found := _COPY.search(line):
        size = operand(found[4]) if found[4] else -1
        return _known(Instruction("copy", "shared", int(found[3]), operand(found[1]), operand(found[2]), size))
    address = _ADDRESS.search(line)
    if address is None or address[2]:
        return None
    if found := _LDMATRIX.search(line):
        op = "ldmatrix" if found[1] == "ld" else "stmatrix"
        return _known(Instruction(op, "shared", 16, operand(address[1]), -1, -1, int(found[2]), bool(found[3])))
    if found := _PLAIN.search(line):
        width = int(found[3][1:] if found[3] else 1) * int(found[4][1:]) // 8
        return _known(Instruction("load" if found[1] == "ld" else "store", found[2], width, operand(address[1])))
    return None


def _known(instruction: Instruction) -> Instruction | None:
    copy_without_source = instruction.op == "copy" and instruction.source < 0
    return None if instruction.pointer < 0 or copy_without_source else instruction
