"""Tables for terminals of any width and for pipes: cells wrap between words, no value is ever cut, and none steers the
terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tirgemm._terminal.plain_text import plain

# Spaces between two columns, and the fewest cells that a column of words is wrapped to.
_GAP = 2
_LEAST = 14
_WORD = re.compile(r"\S+\s*")


def wrapped(text: Text, width: int) -> list[Text]:
    """Lines of at most ``width`` cells, broken between words; a longer word stays whole, on a line of its own."""
    lines: list[Text] = []
    for paragraph in text.split("\n", allow_blank=True):
        breaks: list[int] = []
        taken: int | None = None
        for word in _WORD.finditer(paragraph.plain):
            if taken is None:
                taken = cell_len(paragraph.plain[: word.start()])
            elif taken + cell_len(word[0].rstrip()) > width:
                breaks.append(word.start())
                taken = 0
            taken += cell_len(word[0])
        parts = paragraph.divide(breaks)
        for part in parts:
            part.rstrip()
        lines += parts
    return lines


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its head. Cells of a ``number`` are set to the right, and wrap last.

    Where room is short, columns with ``optional`` above 0 are left out, the highest first, and named below the table.
    """

    head: str
    number: bool = False
    optional: int = 0


class Table:
    """Rows under heads, as wide as the console lets them be.

    What does not fit is tried in this order: cells of words wrap; optional columns are left out; every row becomes a
    block of lines, head and value. A column given as text that begins with ``>`` is of numbers.
    """

    def __init__(self, *columns: Column | str, title: str = "", indent: int = 0) -> None:
        self.columns: list[Column] = []
        self.rows: list[tuple[Text, ...]] = []
        self.title = title
        self.indent = indent
        for column in columns:
            self.add_column(column)

    def add_column(self, column: Column | str) -> None:
        if isinstance(column, str):
            column = Column(plain(column.removeprefix(">")), column.startswith(">"))
        self.columns.append(column)

    def add_row(self, *cells: str | Text) -> None:
        """A cell for every column, in their order."""
        if len(cells) != len(self.columns):
            raise ValueError(f"a row has {len(cells)} cells; the table has {len(self.columns)} columns")
        self.rows.append(tuple(map(_text, cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - self.indent
        rule = "─" if options.encoding.startswith("utf") else "-"
        return _printed([*self._title(room), *self._body(room, rule)], self.indent)

    @property
    def width(self) -> int:
        """The cells that it takes where nothing wraps."""
        return self.indent + sum(map(self._longest, range(len(self.columns)))) + _GAP * (len(self.columns) - 1)

    def fits(self, width: int) -> bool:
        """Whether all columns are shown side by side, wrapped or not, in ``width`` cells, and no number wraps."""
        columns = range(len(self.columns))
        least = sum(self._least(at, tight=False) for at in columns) + _GAP * (len(self.columns) - 1)
        return self.indent + least <= width

    def _title(self, room: int) -> list[Text]:
        return wrapped(Text(self.title, style="bold"), room) if self.title else []

    def _body(self, room: int, rule: str) -> Iterator[Text]:
        shown = list(range(len(self.columns)))
        while (widths := self._widths(shown, room)) is None:
            spare = [at for at in shown if self.columns[at].optional]
            if not spare:
                yield from self._turned(room)
                return
            shown.remove(max(spare, key=lambda at: self.columns[at].optional))
        yield from self._line([Text(self.columns[at].head, style="bold") for at in shown], shown, widths)
        yield Text(rule * (sum(widths) + _GAP * (len(widths) - 1)), style="dim")
        for row in self.rows:
            yield from self._line([row[at] for at in shown], shown, widths)
        hidden = [column.head for at, column in enumerate(self.columns) if at not in shown and column.head]
        if hidden:
            yield from wrapped(Text(f"Not shown in {room} columns of text: {', '.join(hidden)}.", style="dim"), room)

    def _line(self, cells: Sequence[Text], shown: Sequence[int], widths: Sequence[int]) -> Iterator[Text]:
        """The lines of a row, each column's cells in its width."""
        parts = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for number in range(max(map(len, parts))):
            line = Text()
            for at, lines, width in zip(shown, parts, widths, strict=True):
                text = lines[number] if number < len(lines) else Text()
                space = " " * (width - cell_len(text.plain))
                line.append(space if self.columns[at].number else "").append_text(text)
                line.append(("" if self.columns[at].number else space) + " " * _GAP)
            yield line

    def _widths(self, shown: Sequence[int], room: int) -> list[int] | None:
        """The columns' widths in ``room``: as they are, else with words wrapped; None where that is not enough."""
        room -= _GAP * (len(shown) - 1)
        natural = [self._longest(at) for at in shown]
        if sum(natural) <= room:
            return natural
        for tight in (False, True):
            least = [self._least(at, tight) for at in shown]
            if sum(least) <= room:
                break
        else:
            return None
        widths = list(natural)
        while sum(widths) > room:
            # The widest column of words gives first; heads of numbers fold last.
            able = [number for number, width in enumerate(widths) if width > least[number]]
            widths[max(able, key=lambda number: (not self.columns[shown[number]].number, widths[number]))] -= 1
        return widths

    def _longest(self, at: int) -> int:
        return max(_widths_of(line for cell in self._cells(at) for line in cell.plain.split("\n")))

    def _least(self, at: int, tight: bool) -> int:
        """A column's least width: no word is broken, words have some room, and numbers wrap only where it is
        ``tight``."""
        head, *cells = self._cells(at)
        if self.columns[at].number and not tight:
            return max(_widths_of([*head.plain.split(), *(cell.plain for cell in cells)]))
        words = max(_widths_of(word for cell in (head, *cells) for word in cell.plain.split()))
        return words if self.columns[at].number else max(words, min(_LEAST, self._longest(at)))

    def _cells(self, at: int) -> list[Text]:
        return [Text(self.columns[at].head), *(row[at] for row in self.rows)]

    def _turned(self, room: int) -> Iterator[Text]:
        """Every row as lines of head and value."""
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            yield from _pairs([(column.head, cell) for column, cell in zip(self.columns, row, strict=True)], room)


class Fields:
    """Lines of a name and a value, the values in a column of their own."""

    def __init__(self, fields: Iterable[tuple[str, str | Text]], indent: int = 0) -> None:
        self.fields = [(plain(name), _text(value)) for name, value in fields]
        self.indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _printed(_pairs(self.fields, options.max_width - self.indent), self.indent)


class Paragraph:
    """Words that wrap at the console's width, the first line ``indent`` cells in and the others below it."""

    def __init__(self, text: str | Text, indent: int = 0) -> None:
        self.text = _text(text)
        self.indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _printed(wrapped(self.text, options.max_width - self.indent), self.indent)


def _text(words: str | Text) -> Text:
    text = words if isinstance(words, Text) else Text(plain(words))
    text.plain = plain(text.plain)
    return text


def _printed(lines: Iterable[Text], indent: int) -> Iterator[Text]:
    """Lines as Rich is to print them: without spaces at their ends, and never cropped."""
    for line in lines:
        shown = Text(" " * indent if line.plain else "") + line
        shown.no_wrap, shown.overflow = True, "ignore"
        shown.rstrip()
        yield shown


def _pairs(fields: Sequence[tuple[str, Text]], room: int) -> Iterator[Text]:
    """Names and values that are not empty; a value for which there is no room beside its name comes below it."""
    label = max(_widths_of(name for name, _ in fields)) + _GAP
    for name, value in fields:
        if not value.plain:
            continue
        longest = max(_widths_of(value.plain.split()))
        head = Text.assemble((name + " " * (label - cell_len(name)), "bold"))
        if longest <= room - label:
            for line in wrapped(value, room - label):
                yield head + line
                head = Text(" " * label)
        else:
            if name:
                yield from wrapped(head, room)
            inset = _GAP if longest <= room - _GAP else 0
            yield from (Text(" " * inset) + line for line in wrapped(value, room - inset))


def _widths_of(texts: Iterable[str]) -> list[int]:
    return [cell_len(text) for text in texts] or [0]
