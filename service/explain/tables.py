"""A table as data, so that a terminal and a page show the same words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "good", "bad", "soft", "strong"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The words of a cell, and how they are meant."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with lines of words, a table and notes below it; any of them may be empty.

    ``heads`` are the columns' names; one that begins with ``>`` is of numbers, set to the right. ``topic``: the word by
    which pictures find their section.
    """

    title: str
    lines: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()
    topic: str = ""

    @property
    def columns(self) -> tuple[tuple[str, bool], ...]:
        """Every column's name and whether it is of numbers."""
        return tuple((head.removeprefix(">"), head.startswith(">")) for head in self.heads)


def table(
    title: str,
    heads: tuple[str, ...],
    rows: Iterable[tuple[Cell, ...]],
    lines: Iterable[str] = (),
    notes: Iterable[str] = (),
    topic: str = "",
) -> Section:
    """A section of rows, without the columns in which no row says anything."""
    kept = tuple(rows)
    used = [number for number in range(len(heads)) if any(cells[number].text for cells in kept)]
    return Section(
        title,
        tuple(lines),
        tuple(heads[number] for number in used),
        tuple(tuple(cells[number] for number in used) for cells in kept),
        tuple(notes),
        topic,
    )


def row(*cells: str | Cell) -> tuple[Cell, ...]:
    """A row of cells, plain where they are only words."""
    return tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in cells)


def count(number: float) -> str:
    """A count with thousands apart."""
    return f"{number:,.0f}"


def size(nbytes: float) -> str:
    """Bytes in the unit that reads best, in powers of ten as rates are."""
    return _in_units(nbytes, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)), 3) or f"{nbytes:.0f} B"


def flops(number: float) -> str:
    """Floating-point operations in the unit that reads best."""
    units = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6))
    return _in_units(number, units, 4) or f"{number:,.0f} FLOP"


def _in_units(number: float, units: Sequence[tuple[str, float]], digits: int) -> str:
    """The number in the first unit that it is one of; empty where it is less than all."""
    rounded = float(f"{number:.{digits}g}")
    return next((f"{rounded_to(number / factor, digits)} {unit}" for unit, factor in units if rounded >= factor), "")


def rounded_to(number: float, digits: int) -> str:
    """A number to so many digits, with all of those before the point."""
    whole = float(f"{number:.{digits}g}") >= 10 ** (digits - 1)
    return f"{number:,.0f}" if whole else f"{number:.{digits}g}"


def rate(gbps: float) -> str:
    """A bandwidth given in GB/s."""
    return _in_units(gbps, (("TB/s", 1e3),), 3) or f"{rounded_to(gbps, 3)} GB/s"


def duration(us: float) -> str:
    """Microseconds to four digits."""
    return f"{rounded_to(us, 4)} us"


def share(part: float) -> str:
    """A share in percent, with digits where it is small or almost all."""
    if 0.995 <= part < 1:
        return f"{min(99.9, 100 * part):.1f} %"
    return f"{100 * part:.0f} %" if part >= 0.1 or part == 0 else f"{100 * part:.2g} %"


def listed(words: Iterable[str]) -> str:
    """Words with commas, and an *and* before the last."""
    *before, last = [*words] or [""]
    return f"{', '.join(before)} and {last}" if before else last
