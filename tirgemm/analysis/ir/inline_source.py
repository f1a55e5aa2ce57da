"""Memory effects of inline CUDA functions, read from the PTX that they wrap.

Read are ``asm`` statements and plain ``*(type*)pointer``, of parameters or what is made of them by casts and choices.
What a function does beyond that is not seen, so that a pointer that nothing understood takes makes it unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_SIGNATURE = r"\b{name}\s*\(([^)]*)\)\s*\{{"
_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\((.*?)\)\s*;", re.DOTALL)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'"[=+&]*\w+"\s*\((?:\(\w+\)\s*)?([^()]*(?:\([^()]*\))?[^()]*)\)')
_DEFINITION = re.compile(r"(\w+)\s*=\s*([^;=]+);")
_CAST = re.compile(r"^\((?:const\s+)?\w+[\s*]*\)\s*(?=[\w(])|^(?:reinterpret_cast|static_cast)<[^>]*>\s*")
_CONVERTED = re.compile(r"^__cvta_generic_to_shared\s*(?=\()")
_CHOICE = re.compile(r"^(\w+)\s*\?\s*(\w+)\s*:\s*(\w+)$")
_LDMATRIX = re.compile(r"(ld|st)matrix\S*?\.x([124])(\.trans)?\S*\.b16")
_COPY = re.compile(r"cp\.async\.c[ag]\S*\s*\[%(\d+)\],\s*\[%(\d+)\],\s*(\d+)(?:,\s*%(\d+))?")
_PLAIN = re.compile(r"\b(ld|st)\.(?:\w+\.)*?(shared|global)\S*?(?:\.(v[24]))?\.([bfsu]\d+)\b")
_DEREFERENCE = re.compile(
    r"\*\s*(?:\(\s*(?:const\s+)?(\w+)\s*\*\s*\)\s*(\w+)|reinterpret_cast<\s*(?:const\s+)?(\w+)\s*\*\s*>\s*\(\s*(\w+)\s*\))"
    r"(\s*=(?!=))?"
)
_TYPES = {
    "char": 1,
    "half": 2,
    "short": 2,
    "float": 4,
    "int": 4,
    "unsigned": 4,
    "half2": 4,
    "float2": 8,
    "int2": 8,
    "uint2": 8,
    "double": 8,
    "float4": 16,
    "int4": 16,
    "uint4": 16,
    "double2": 16,
}
_ADDRESS = re.compile(r"\[%(\d+)(?:\s*\+\s*(\d+))?\]")


@dataclass(frozen=True, slots=True)
class Term:
    """A value in a function: the parameter at ``place``, the ``number``, or of ``choice`` (condition, yes, no) one."""

    place: int = -1
    number: int = 0
    choice: tuple[Term, ...] = ()

    @property
    def places(self) -> frozenset[int]:
        """The parameters of which it is made."""
        mine = frozenset((self.place,)) if self.place >= 0 else frozenset()
        return mine.union(*(term.places for term in self.choice))


@dataclass(frozen=True, slots=True)
class InlineAccess:
    """One access of a function: its address, of a copy the address that it reads and how many bytes of it (None: all).

    ``op`` and ``space`` as of sites; of a copy ``space`` is where it writes, and empty where the pointer says it.
    """

    op: str
    space: str
    width: int
    pointer: Term
    source: Term | None = None
    size: Term | None = None
    matrices: int = 0
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class InlineFunction:
    """The accesses of a function, and the instructions of it that are not understood."""

    instructions: tuple[InlineAccess, ...]
    unknown: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def function(name: str, source: str) -> InlineFunction | None:
    """What ``name`` does, whose definition is in ``source``; None where it is not there."""
    match = re.search(_SIGNATURE.format(name=re.escape(name)), source)
    if match is None:
        return None
    parameters = [p.split("=")[0].strip().split()[-1].lstrip("*&") for p in match[1].split(",") if p.strip()]
    body = _body(source, match.end())
    local = dict(_DEFINITION.findall(body))
    instructions: list[InlineAccess] = []
    unknown: list[str] = []
    for statement in _ASM.findall(_joined(body)):
        text, *rest = _parts(statement)
        operands = [_term(o, parameters, local) for part in rest for o in _OPERAND.findall(part)]
        for line in filter(None, (x.strip() for x in re.split(r";|\\n", text))):
            made = _instruction(line, operands)
            if made is not None:
                instructions.append(made)
            elif "[" in line:
                unknown.append(line.split()[0])
    for one, given, other, another, stores in _DEREFERENCE.findall(body):
        pointer, width = _term(given or another, parameters, local), _TYPES.get(one or other)
        if pointer is not None and width is not None:
            instructions.append(InlineAccess("store" if stores else "load", "", width, pointer))
        else:
            unknown.append(f"*({one or other}*){given or another}")
    return InlineFunction(tuple(instructions), tuple(unknown))


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


def _term(text: str, parameters: list[str], local: dict[str, str], depth: int = 8) -> Term | None:
    """What an operand is, None where that is more than names, numbers, casts and choices."""
    text = text.strip()
    while match := _CAST.match(text) or _CONVERTED.match(text):
        text = text[match.end() :].strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if text in parameters:
        return Term(parameters.index(text))
    if re.fullmatch(r"\d+u?", text):
        return Term(number=int(text.rstrip("u")))
    if depth and text in local:
        return _term(local[text], parameters, local, depth - 1)
    if match := _CHOICE.match(text):
        parts = [_term(part, parameters, local, depth - 1) for part in match.groups()]
        return Term(choice=tuple(p for p in parts if p)) if depth and all(parts) else None
    return None


def _instruction(line: str, operands: list[Term | None]) -> InlineAccess | None:
    def operand(number: str) -> Term | None:
        return operands[int(number)] if int(number) < len(operands) else None

    if match := _COPY.search(line):
        to, source, size = operand(match[1]), operand(match[2]), operand(match[4]) if match[4] else None
        if to is None or source is None or (match[4] and size is None):
            return None
        return InlineAccess("copy", "shared", int(match[3]), to, source, size)
    address = _ADDRESS.search(line)
    pointer = operand(address[1]) if address is not None and not address[2] else None
    if pointer is None:
        return None
    if match := _LDMATRIX.search(line):
        op = "ldmatrix" if match[1] == "ld" else "stmatrix"
        return InlineAccess(op, "shared", 16, pointer, matrices=int(match[2]), transposed=bool(match[3]))
    if match := _PLAIN.search(line):
        width = int(match[3][1:] if match[3] else 1) * int(match[4][1:]) // 8
        return InlineAccess("load" if match[1] == "ld" else "store", match[2], width, pointer)
    return None
