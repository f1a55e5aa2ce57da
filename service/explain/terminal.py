"""Sections on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from service.explain.tables import Section, Tone

_STYLES: dict[Tone, str] = {"plain": "", "good": "green", "bad": "red", "soft": "dim", "strong": "bold"}
# A file or a pipe has no width of its own.
_WIDTH = 150
_INDENT = (0, 0, 0, 2)
_NARROW = 8


def show(sections: Iterable[Section], console: Console | None = None) -> None:
    """Print ``sections`` (to stdout by default): words wrap at the terminal's width, numbers stay whole."""
    if console is None:
        console = Console(highlight=False, markup=False)
        if not console.is_terminal:
            console.width = _WIDTH
    for section in sections:
        console.print(Text(section.title, style="bold underline"))
        if section.lines:
            console.print(Padding(_lines(section.lines), _INDENT))
        if section.rows:
            console.print(_table(section))
        for note in section.notes:
            console.print(Padding(Text(note), _INDENT))
        # A table ends with an empty line of its own.
        if section.notes or not section.rows:
            console.print()


def _lines(lines: tuple[str, ...]) -> Table:
    """Lines whose name is before a colon, the names in a column of their own."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for line in lines:
        head, colon, rest = line.partition(": ")
        grid.add_row(*((head, Text(rest)) if colon else ("", Text(line))))
    return grid


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for number, (name, right) in enumerate(section.columns):
        table.add_column(
            name, justify="right" if right else "left", no_wrap=number == 0, overflow="fold",
            min_width=_least(section, number),
        )  # fmt: skip
    for cells in section.rows:
        table.add_row(*(Text(cell.text, style=_STYLES[cell.tone]) for cell in cells))
    return table


def _least(section: Section, number: int) -> int:
    """Columns of numbers are as wide as their longest word; others may wrap."""
    name, right = section.columns[number]
    words = [name, *(cells[number].text for cells in section.rows)] if right else []
    return max((len(word) for text in words for word in text.split()), default=_NARROW)
