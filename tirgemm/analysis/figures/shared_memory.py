"""Drawings of shared memory as SVG: banks by lanes and phases, thread-value maps, tiles coloured by bank.

Functions from data to text. What a picture leaves out for want of room it says in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tirgemm.analysis.banks.access_patterns import Pattern
from tirgemm.analysis.banks.conflict_proof import prove
from tirgemm.analysis.banks.wavefronts import BankPhase, BankReport
from tirgemm.analysis.figures.svg import HUES, picture, ranges, rect, rects, room, text
from tirgemm.errors import InvalidRequest
from tirgemm.layouts import Layout, TiledCopy

_TOP = 30  # below the title
_MARGIN = 8
_LINE = 16
_UNIT_BANKS = 4  # banks of one colour: 16 bytes
_MOST_ROWS, _MOST_COLUMNS = 32, 64  # of a copy


def bank_picture(report: BankReport, title: str = "") -> str:
    """The first request: a row for every wavefront, by phase, a column for every bank, and in each cell the lanes it
    serves.

    The colour is the lane's; a wavefront that a better layout would spare is marked.
    """
    banks, phases = report.model.banks, report.phases(0)
    wavefronts, conflicts = int(report.wavefronts[0]), int(report.conflicts[0])
    labels = [f"phase {number}: lanes {ranges(phase.lanes)}" for number, phase in enumerate(phases)]
    left, cell, gap = _MARGIN + room([*labels, "wavefront 00"]), 26, 8
    shapes = [text(left + (bank + 0.5) * cell, _TOP + 10, str(bank), "s m n") for bank in range(banks)]
    y = float(_TOP + _LINE)
    for label, phase in zip(labels, phases, strict=True):
        shapes.append(text(_MARGIN, y + 12, label))
        spread = -(-sum(map(len, phase.words)) // banks)
        for turn in range(phase.wavefronts):
            if turn:
                shapes.append(text(_MARGIN, y + 12, f"wavefront {turn + 1}", "s"))
            shapes += _pass(phase, turn, left, y, cell)
            if turn >= spread:
                shapes.append(rect(left - 1, y, banks * cell + 2, _LINE, "x"))
            y += _LINE + 2
        y += gap
    heading = title or f"{report.access}: {wavefronts} wavefronts, {conflicts} of them conflicts"
    return picture(max(left + banks * cell + _MARGIN, room([heading]) * 1.3), y + 4, heading, shapes)


def _pass(phase: BankPhase, turn: int, left: float, y: float, cell: float) -> list[str]:
    """The cells of one wavefront: the word that each bank gives, and to whom."""
    shapes = []
    for bank, words in enumerate(phase.words):
        x = left + bank * cell
        if turn >= len(words):
            shapes.append(rect(x, y, cell, _LINE, "l"))
            continue
        wanting = _wanting(phase, bank, words[turn])
        lanes = ranges(wanting)
        shapes.append(
            rect(x, y, cell, _LINE, f"h{wanting[0] % HUES}", f"bank {bank}, word {words[turn]}: lanes {lanes}")
        )
        few = lanes if len(lanes) <= 5 else f"{len(wanting)} x"
        shapes.append(text(x + cell / 2, y + 12, few, "m n"))
    return shapes


def _wanting(phase: BankPhase, bank: int, word: int) -> list[int]:
    """The lanes of a phase that want a word of a bank."""
    return [
        lane
        for lane, banks, first in zip(phase.lanes, phase.banks, phase.first_words, strict=True)
        if bank in banks and first + banks.index(bank) == word
    ]


def copy_picture(copy: TiledCopy, title: str = "") -> str:
    """The thread-value map of a copy: the tile, each thread's runs of values, threads of a warp in turning colours."""
    rows, columns = copy.tiler
    shown_rows, shown_columns = min(rows, _MOST_ROWS), min(columns, _MOST_COLUMNS)
    at = copy.elements()
    value_of = np.empty((rows, columns), dtype=np.int64)
    value_of[at[..., 0], at[..., 1]] = np.arange(copy.value_count)
    owner = copy.owner()
    down = copy.value_count > 1 and bool((at[:, 1, 0] != at[:, 0, 0]).all())
    # A cell has room for its thread's name: a run of several values for that of the run, too.
    in_runs = bool((owner[:, 1:] == owner[:, :-1]).any())
    wide, high = (30, 14) if down else (16 if in_runs else 28, 18)
    left, top = _MARGIN + 26, _TOP + 14
    shapes = [text(left - 4, top + (row + 0.7) * high, str(row), "s e n") for row in range(shown_rows)]
    step = 1 if down else 4
    shapes += [text(left + column * wide + 2, top - 4, str(column), "s n") for column in range(0, shown_columns, step)]
    seen = np.zeros((rows, columns), dtype=np.bool_)
    for row, column in np.ndindex(shown_rows, shown_columns):
        if seen[row, column]:
            continue
        thread, value = int(owner[row, column]), int(value_of[row, column])
        length = 1
        while True:
            r, c = (row + length, column) if down else (row, column + length)
            if r >= shown_rows or c >= shown_columns or (owner[r, c], value_of[r, c]) != (thread, value + length):
                break
            length += 1
        seen[row : row + (length if down else 1), column : column + (1 if down else length)] = True
        x, y = left + column * wide, top + row * high
        w, h = (wide, high * length) if down else (wide * length, high)
        run = (
            f"thread {thread}, values {value}-{value + length - 1}" if length > 1 else f"thread {thread}, value {value}"
        )
        shapes.append(rect(x, y, w, h, f"h{thread % HUES}", f"{run}: from ({row}, {column}) on"))
        label = f"T{thread}" if w < 60 else f"T{thread} v{value}-{value + length - 1}"
        if w >= len(label) * 5.2 + 2:
            shapes.append(text(x + w / 2, y + h / 2 + 3, label, "m n"))
    height = top + shown_rows * high + 6
    if (shown_rows, shown_columns) != (rows, columns):
        shapes.append(text(_MARGIN, height + 10, f"the first {shown_rows}x{shown_columns} of {rows}x{columns}", "s"))
        height += _LINE
    heading = title or f"{copy}: {rows}x{columns} by {copy.thread_count} threads of {copy.value_count} values"
    return picture(max(left + shown_columns * wide + _MARGIN, room([heading]) * 1.3), height, heading, shapes)


def tile_picture(
    layouts: Mapping[str, Layout],
    pattern: Pattern | None = None,
    title: str = "",
    arch: str = "sm_90a",
) -> str:
    """The same tile in several layouts side by side: each 16 bytes by the first of their banks, pads hollow.

    Cells that the first phase of ``pattern``'s first request touches are framed: good where they have their banks for
    themselves, bad where two lanes want different words of one. Raises InvalidRequest where there is no layout.
    """
    if not layouts:
        raise InvalidRequest("a picture of no layouts")
    shapes: list[str] = []
    x, y, bottom, right = float(_MARGIN), float(_TOP), 0.0, 0.0
    for name, layout in layouts.items():
        width, height = _extent(name, layout)
        if x > _MARGIN and x + width > _MOST_WIDTH:
            x, y = float(_MARGIN), bottom + 10
        shapes += _tile(name, layout, x, y)
        if pattern is not None:
            shapes += _frames(layout, pattern, arch, x, y)
        bottom, right = max(bottom, y + height), max(right, x + width)
        x += width + 24
    heading = title or "the first bank of every cell" + (f"; {pattern.name}" if pattern else "")
    if pattern is not None:
        note = "framed: the first phase of request 0; red: two lanes want different words of one bank"
        shapes.append(text(_MARGIN, bottom + 14, note, "s"))
        bottom, right = bottom + _LINE, max(right, room([note]))
    return picture(max(right + _MARGIN, room([heading]) * 1.3), bottom + 6, heading, shapes)


_CELL = 24
_GUTTER = 26  # of row numbers
_HEAD = _LINE + 10
_MOST_WIDTH = 1100
_MOST_TILE_ROWS = 16


def _unit(layout: Layout) -> int:
    """Elements of a cell: 16 bytes, or fewer where a layout scatters them."""
    return max(1, min(16 // layout.element_bytes, layout.vector))


def _width(layout: Layout) -> float:
    """Of a cell, with room for its bank's number."""
    return max(_CELL / 2, _CELL * layout.element_bytes * _unit(layout) / 16)


def _extent(name: str, layout: Layout) -> tuple[float, float]:
    """Width and height of a tile's drawing."""
    width = _GUTTER + (layout.columns + layout.pad) * _width(layout) / _unit(layout)
    lines = min(layout.rows, _MOST_TILE_ROWS) + (layout.rows > _MOST_TILE_ROWS)
    return max(width, room([f"{name}: {layout}"])), _HEAD + lines * _LINE


def _tile(name: str, layout: Layout, x: float, y: float) -> list[str]:
    unit, width, left, top = _unit(layout), _width(layout), x + _GUTTER, y + _HEAD
    rows = min(layout.rows, _MOST_TILE_ROWS)
    starts = np.arange(0, layout.columns, unit)
    banks = layout.byte_offset(np.arange(rows)[:, None], starts[None, :]) // 4 % 32
    shapes = [text(x, y + 12, f"{name}: {layout}")]
    by_hue: dict[int, list[tuple[float, float]]] = {}
    for row in range(rows):
        at = top + row * _LINE
        shapes.append(text(left - 4, at + 12, str(row), "s e n"))
        for place, bank in enumerate(banks[row].tolist()):
            by_hue.setdefault(bank // _UNIT_BANKS % HUES, []).append((left + place * width, at))
            shapes.append(text(left + (place + 0.5) * width, at + 12, str(bank), "m n"))
        if layout.pad:
            pad = layout.pad * width / unit
            shapes.append(rect(left + layout.columns * width / unit, at, pad, _LINE, "d", "padding"))
    if rows < layout.rows:
        shapes.append(text(x, top + rows * _LINE + 12, f"{rows} of {layout.rows} rows", "s"))
    return [*(rects(corners, width, _LINE, f"h{hue}") for hue, corners in sorted(by_hue.items())), *shapes]


def _frames(layout: Layout, pattern: Pattern, arch: str, x: float, y: float) -> Sequence[str]:
    """Frames round the cells of the first phase of a pattern's first request."""
    active = None if pattern.active is None else pattern.active[:1]
    one = Pattern(pattern.name, pattern.access, pattern.rows[:1], pattern.columns[:1], active)
    phases = prove(layout, one, arch).report.phases(0)
    if not phases:
        return []
    phase, unit, width = phases[0], _unit(layout), _width(layout)
    length = pattern.access.width // layout.element_bytes
    crowding: dict[tuple[int, int], bool] = {}
    for lane, banks in zip(phase.lanes, phase.banks, strict=True):
        row, column = int(one.rows[0, lane]), int(one.columns[0, lane])
        crowded = any(len(phase.words[bank]) > 1 for bank in banks)
        for place in range(column // unit, (column + length - 1) // unit + 1):
            crowding[row, place] = crowding.get((row, place), False) or crowded
    return [
        rect(x + _GUTTER + place * width + 1, y + _HEAD + row * _LINE + 1, width - 2, _LINE - 2, "x" if bad else "o")
        for (row, place), bad in crowding.items()
        if row < _MOST_TILE_ROWS
    ]
