"""Sections on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from tirgemm._terminal import console
from tirgemm._terminal.tables import Fields, Paragraph, Table
from tirgemm.service.explain.tables import Section, Tone

_STYLES: dict[Tone, str] = {"plain": "", "good": "green", "bad": "red", "soft": "dim", "strong": "bold"}
_INDENT = 2


def show(sections: Iterable[Section]) -> None:
    """Print ``sections`` to stdout: words wrap at the terminal's width, numbers stay whole."""
    for section in sections:
        console.out.print(Text(section.title, style="bold underline"))
        if section.lines:
            console.out.print(Fields(map(_field, section.lines), indent=_INDENT))
        if section.lines and section.rows:
            console.out.print()
        if section.rows:
            console.out.print(_table(section))
        if section.notes and section.rows:
            console.out.print()
        for note in section.notes:
            console.out.print(Paragraph(note, indent=_INDENT))
        console.out.print()


def _field(line: str) -> tuple[str, str]:
    """A line's name, which is before a colon, and what it says of it."""
    name, colon, rest = line.partition(": ")
    return (name, rest) if colon else ("", line)


def _table(section: Section) -> Table:
    table = Table(*section.heads, indent=_INDENT)
    for cells in section.rows:
        table.add_row(*(Text(cell.text, style=_STYLES[cell.tone]) for cell in cells))
    return table
