"""Resources of kernels, read from the ELF sections of a cubin: registers, stack, shared memory, barriers.

Layout: ELF64, and the attributes of ``.nv.info`` sections as ``cuobjdump -elf`` names them (EIATTR_...).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tirgemm.errors import AnalysisFailed

_REGCOUNT, _FRAME_SIZE, _MIN_STACK = 0x2F, 0x11, 0x12
_BARRIERS = 0x4C
_BYTE, _SIZED = 2, 4  # how an attribute's value is stored
_SYMBOLS = 2
# Since sm_90 a block's first KiB of shared memory is the driver's, and the cubin counts it as the kernel's.
_RESERVED_SYMBOL = ".nv.reservedSmem.offset0"
_RESERVED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class KernelSections:
    """One kernel as its cubin declares it.

    ``stack_bytes`` a thread; ``shared_bytes`` static, without what the driver reserves; ``barriers`` named barriers.
    """

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    barriers: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def kernels(cubin: bytes) -> tuple[KernelSections, ...]:
    """The kernels that ``cubin`` holds, by name. Raises AnalysisFailed for what is no cubin or is cut short."""
    try:
        return _kernels(cubin)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise AnalysisFailed(f"{len(cubin)} bytes are not a whole cubin: {error}") from error


def _kernels(cubin: bytes) -> tuple[KernelSections, ...]:
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        raise ValueError(f"they start with {cubin[:8]!r}, not as a 64-bit ELF file")
    sections = _sections(cubin)
    symbols = _symbols(cubin, sections)
    shared = {s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")}
    reserved = _RESERVED_BYTES if _RESERVED_SYMBOL in symbols else 0
    registers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    frames: dict[str, int] = {}
    tables = {_REGCOUNT: registers, _MIN_STACK: stacks, _FRAME_SIZE: frames}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, value in _attributes(cubin, section):
                if attribute in tables and isinstance(value, bytes):
                    symbol, number = struct.unpack("<II", value)
                    tables[attribute][symbols[symbol]] = number
    kernels = []
    for section in sections:
        if not section.name.startswith(".nv.info."):
            continue
        name = section.name.removeprefix(".nv.info.")
        if name not in registers:
            raise ValueError(f"the register count of {name} is missing")
        barriers = 0
        for attribute, value in _attributes(cubin, section):
            if attribute == _BARRIERS and isinstance(value, int):
                barriers = value
        static = max(0, shared.get(name, 0) - reserved)
        stack = max(stacks.get(name, 0), frames.get(name, 0))
        kernels.append(KernelSections(name, registers[name], stack, static, barriers))
    if not kernels:
        raise ValueError("they hold no kernel")
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _sections(cubin: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + index * size) for index in range(count)]
    base = raw[names][4]
    return [_Section(_text(cubin, base + s[0]), s[1], s[4], s[5], s[6]) for s in raw]


def _symbols(cubin: bytes, sections: list[_Section]) -> list[str]:
    table = next(s for s in sections if s.kind == _SYMBOLS)
    base = sections[table.link].offset
    return [
        _text(cubin, base + struct.unpack_from("<I", cubin, table.offset + at)[0]) for at in range(0, table.size, 24)
    ]


def _attributes(cubin: bytes, section: _Section) -> Iterator[tuple[int, int | bytes]]:
    at = section.offset
    while at < section.offset + section.size:
        form, attribute, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == _SIZED:
            yield attribute, cubin[at : at + value]
            at += value
        else:
            yield attribute, value & 0xFF if form == _BYTE else value


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode()
