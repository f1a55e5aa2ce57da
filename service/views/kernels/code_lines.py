"""Texts of an artifact side by side, with the line of the CUDA source that each line of PTX and machine code is of.

A served cubin holds no line information. NVRTC compiles the same source with the same flags and line information: where
that gives the very same instructions, its lines are the served kernel's; where it does not, nothing is linked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tirgemm.artifact import Package
from tirgemm.errors import TirgemmError
from tirgemm.service.views.artifact_file import OpenedArtifact
from tirgemm.service.views.artifact_texts import NAMES, RECORDED, text_of

_SOURCE = RECORDED["cuda"]
_LINE_INFO = "-lineinfo"
_PTX_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
_PTX_LINE = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s")
_SASS_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_SASS_MARK = "//##"


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line, and the number of the line of the CUDA source that it is of, from 1; None where that is not known."""

    text: str
    source: int | None = None


@dataclass(frozen=True, slots=True)
class CodeText:
    """One text: its ``kind`` is a name that ``tirgemm show`` knows. ``made`` says how, of one that the artifact does
    not hold; ``missing`` why there is none; ``unlinked`` why its lines are not linked."""

    kind: str
    lines: tuple[CodeLine, ...] = ()
    made: str = ""
    missing: str = ""
    unlinked: str = ""

    @property
    def name(self) -> str:
        return NAMES[self.kind]


def linked_text(opened: OpenedArtifact, kind: str) -> CodeText:
    """The text of that kind with its lines linked to those of the source. Raises what ``text_of`` raises."""
    text = text_of(opened, kind)
    lines, unlinked = _linked(opened, kind, text.text.splitlines())
    return CodeText(kind, lines, text.made, unlinked=unlinked)


def _linked(opened: OpenedArtifact, kind: str, lines: Sequence[str]) -> tuple[tuple[CodeLine, ...], str]:
    """The lines with those of the source, or without them and why."""
    package = opened.package
    plain = tuple(map(CodeLine, lines))
    if kind == "cuda":
        return tuple(CodeLine(line, number) for number, line in enumerate(lines, 1)), ""
    if kind not in ("ptx", "sass"):
        why = "no compiler told from which line of it the others are" if kind == "script" else "it has no line numbers"
        return plain, why
    if _SOURCE not in package.sources:
        return plain, "the artifact holds no CUDA source"
    try:
        if kind == "ptx":
            return _ptx_lines(package), ""
        linked = _sass_lines(package)
    except TirgemmError as error:
        return plain, f"line information could not be made here: {error}"
    if [line.text for line in linked] != list(lines):
        return plain, (
            "the compiler that is installed here makes other machine code of the source than the served kernel's, so "
            "that its line numbers would not be those of this code"
        )
    return linked, ""


def _ptx_lines(package: Package) -> tuple[CodeLine, ...]:
    """The PTX of the same flags and line information, without the directives that hold it."""
    from tirgemm.tuning.driver.nvrtc import compile_ptx

    text = compile_ptx(package.sources[_SOURCE], (*package.manifest.flags, _LINE_INFO), _SOURCE)
    files = {match[1]: match[2] for line in text.splitlines() if (match := _PTX_FILE.match(line))}
    lines, source = [], None
    for line in text.splitlines():
        if (match := _PTX_LINE.match(line)) is not None:
            source = int(match[2]) if files.get(match[1], "").endswith(_SOURCE) else None
        elif _PTX_FILE.match(line):
            continue
        elif line.startswith(("\t.section", "}")):
            lines.append(CodeLine(line))
            source = None
            if "debug" in line:
                break
        else:
            is_code = line.startswith(("\t", "@")) and not line.lstrip().startswith(("//", "."))
            lines.append(CodeLine(line, source if is_code else None))
    return tuple(lines)


def _sass_lines(package: Package) -> tuple[CodeLine, ...]:
    """The machine code of the same source and flags with line information, as nvdisasm prints that of the served."""
    from tirgemm.analysis.sass.disassembler import disassembly
    from tirgemm.tuning.driver.nvrtc import compile_again

    text = disassembly(compile_again(package.sources[_SOURCE], (*package.manifest.flags, _LINE_INFO), _SOURCE))
    lines: list[CodeLine] = []
    source: int | None = None
    for line in text.splitlines():
        if (match := _SASS_LINE.match(line)) is not None:
            source = int(match[2]) if match[1].endswith(_SOURCE) else None
        elif not line.lstrip().startswith(_SASS_MARK):
            is_code = line.lstrip().startswith("/*")
            lines.append(CodeLine(line, source if is_code else None))
            source = None if line.lstrip().startswith("//---") else source
    return tuple(lines)
