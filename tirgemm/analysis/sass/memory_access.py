"""Operands of a SASS memory instruction: space, width, address, kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MemorySpace = Literal["shared", "global", "local", "constant", "generic", "distributed"]
AccessKind = Literal["load", "store", "atomic", "copy", "bulk", "matrix", "barrier", "prefetch"]


@dataclass(frozen=True, slots=True)
class Address:
    """An address operand: the sum of ``registers`` (``UR`` ones are the same in every lane) and ``offset`` bytes.

    ``registers`` are as printed without the width of a pair: ``R12`` for ``[R12.64+0x208]``; a scaled one keeps its
    factor (``R3.X4``); the zero registers are left out, and so are descriptors and constant banks.
    """

    registers: tuple[str, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """What one instruction does to memory.

    ``width``: bytes a lane; of LDSM and STSM 4 bytes a lane and matrix (each lane *names* a row of 16 bytes); 0 where
    the instruction moves a tile of which it does not say the size (``bulk``: TMA; ``matrix``: wgmma), and for mbarrier
    operations (``barrier``), prefetches of descriptors and the like.
    ``address`` lies in ``space``; a ``copy`` (LDGSTS) and a ``bulk`` load write ``space`` at ``address`` and read
    ``source`` in global memory; a bulk store reads ``space`` shared and writes what ``source`` describes.
    ``matrices`` and ``transposed``: LDSM's and STSM's .x1, .x2, .x4 and .T.
    """

    kind: AccessKind
    space: MemorySpace
    width: int
    address: Address | None
    source: Address | None = None
    matrices: int = 0
    transposed: bool = False


_WIDTHS = {
    "U8": 1,
    "S8": 1,
    "8": 1,
    "U16": 2,
    "S16": 2,
    "16": 2,
    "32": 4,
    "U32": 4,
    "S32": 4,
    "F32": 4,
    "F16x2": 4,
    "BF16x2": 4,
    "BF16_V2": 4,
    "F16": 2,
    "64": 8,
    "U64": 8,
    "S64": 8,
    "F64": 8,
    "128": 16,
    "256": 32,
}
_PLAIN: dict[str, tuple[AccessKind, MemorySpace]] = {
    "LDS": ("load", "shared"),
    "STS": ("store", "shared"),
    "ATOMS": ("atomic", "shared"),
    "STAS": ("store", "distributed"),
    "REDAS": ("atomic", "distributed"),
    "LDG": ("load", "global"),
    "STG": ("store", "global"),
    "ATOMG": ("atomic", "global"),
    "RED": ("atomic", "global"),
    "REDG": ("atomic", "global"),
    "LD": ("load", "generic"),
    "ST": ("store", "generic"),
    "ATOM": ("atomic", "generic"),
    "LDL": ("load", "local"),
    "STL": ("store", "local"),
    "LDC": ("load", "constant"),
    "ULDC": ("load", "constant"),
    "LDCU": ("load", "constant"),
    "LDGMC": ("load", "global"),
}
_BULK = {"UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED"}
_PREFETCH = {"UTMAPF", "UTMACCTL", "UBLKPF"}
_WGMMA = {"HGMMA", "IGMMA", "BGMMA", "QGMMA"}


def memory_access(opcode: str, modifiers: tuple[str, ...], operands: tuple[str, ...]) -> MemoryAccess | None:
    """What the instruction does to memory; None for one that touches none. wgmma's A in registers has no address."""
    addresses = [address for operand in operands if (address := parse_address(operand)) is not None]
    first, second = (*addresses, None, None)[:2]
    if opcode in _PLAIN:
        kind, space = _PLAIN[opcode]
        return MemoryAccess(kind, space, _width(modifiers), first)
    if opcode in ("LDSM", "STSM"):
        matrices = next((int(m) for m in modifiers if m in ("2", "4")), 1)
        kind = "load" if opcode == "LDSM" else "store"
        return MemoryAccess(
            kind,
            "shared",
            4 * matrices,
            first,
            matrices=matrices,
            transposed=any(m.startswith("MT") for m in modifiers),
        )
    if opcode == "LDGSTS":
        return MemoryAccess("copy", "shared", _width(modifiers), first, second)
    if opcode in _BULK:
        return MemoryAccess("bulk", "shared", 0, first, second)
    if opcode in _WGMMA and addresses:
        return MemoryAccess("matrix", "shared", 0, first)
    if opcode == "SYNCS":
        return MemoryAccess("barrier", "shared", 0, first)
    if opcode in _PREFETCH:
        return MemoryAccess("prefetch", "global", 0, first)
    return None


_BRACKET = re.compile(r"(?:(?:g?desc|cx?)\[[^\]]*\])?\[([^\]]*)\]|gdesc\[[^\]]*\]")
_ZERO = ("RZ", "URZ")


def parse_address(operand: str) -> Address | None:
    """The address that an operand is, or None: ``[R8+UR5+0xfa0]``, ``desc[UR6][R2.64+-0x10]``, ``gdesc[UR8]``,
    ``c[0x0][0x28]``."""
    match = _BRACKET.search(operand) if "[" in operand else None  # most are registers
    if match is None:
        return None
    registers: list[str] = []
    offset = 0
    for term in (match[1] or "").split("+"):
        number = re.fullmatch(r"(-?)0x([0-9a-f]+)", term.strip())
        if number:
            offset += int(f"{number[1]}{number[2]}", 16)
            continue
        name = re.sub(r"\.(64|U32|S32|reuse)\b", "", term.strip())
        if name and name.split(".")[0] not in _ZERO:
            registers.append(name)
    return Address(tuple(registers), offset)


def _width(modifiers: tuple[str, ...]) -> int:
    return next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)
