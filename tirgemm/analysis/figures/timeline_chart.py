"""Drawing of a kernel's timeline as SVG: a line for each warpgroup, coloured by what it does; one tile closer by.

A pixel of the overview has the colour of what took most of its time, and none where nothing was recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.analysis.figures.svg import HUES, number, path, picture, rect, room, round_ticks, text
from tirgemm.analysis.timeline.recording import RecordedSpan, Recording, Track
from tirgemm.errors import InvalidRequest

_TOP, _MARGIN = 30, 8
_WIDTH = 1000
_ROW, _GAP = 13, 3
_LEGEND = 12
_MOST_BLOCKS = 4
# Spans of one tile that are drawn one by one, with what they are to be read at the mouse.
_MOST_SPANS = 600
_TICKS = 8
# The colours of the usual kinds, the same in every picture and far from one another where they stand side by side.
_USUAL = {"wait": 0, "turn": 1, "load": 5, "multiply": 3, "drain": 6, "exchange": 4, "add": 7, "store": 2}


def timeline_svg(recording: Recording) -> str:
    """The picture of a recording; safe to be put into a page as it is. Of an emulator's the heading says that nothing
    was measured. Raises InvalidRequest for more kinds of spans than there are colours."""
    colours = colours_of(recording)
    what = "Timeline" if recording.measured else "Emulated timeline (nothing was measured)"
    title = f"{what} of {recording.gemm}, {recording.family} on {recording.environment.get('device')}"
    shown = recording.blocks[:_MOST_BLOCKS]
    words = f"{recording.launched} blocks, of which {len(shown)} are shown"
    if recording.measured:
        shapes = [text(_MARGIN, _TOP + 6, f"{words}; {recording.length:,.2f} us in all", "s")]
    else:
        warning = "emulated on a CPU: lengths are steps of the emulator, and say nothing of the speed of any GPU"
        shapes = [text(_MARGIN, _TOP + 6, f"{words}; {warning}", "r")]
    y = float(_TOP + 20)
    shapes += _legend(colours, y)
    y += _LEGEND + 14
    whole = _Window(recording, 0.0, recording.length or 1.0, colours)
    for block in shown:
        y = whole.draw_block(block, y, shapes, closely=False)
    y = whole.draw_axis(y, shapes)
    tile = _middle_tile(recording)
    if tile is not None:
        track, span = tile
        start, end = recording.place(track, span.start), recording.place(track, span.end)
        shapes.append(text(_MARGIN, y + 14, f"Tile {span.number} of block {track.block}, {track.role}"))
        closer = _Window(recording, start, end if end > start else start + 1.0, colours)
        y = closer.draw_axis(closer.draw_block(track.block, y + 24, shapes, closely=True), shapes)
    return picture(_WIDTH, y + 4, title, shapes)


def colours_of(recording: Recording) -> dict[str, str]:
    """The class of each kind of span inside tiles that occurs."""
    occur = {span.kind for track in recording.tracks for span in track.steps}
    kinds = [kind for kind in recording.kinds if kind in occur]
    if len(kinds) > HUES:
        raise InvalidRequest(f"spans of {len(kinds)} kinds ({', '.join(kinds)}); there are {HUES} colours")
    usual = {kind: _USUAL[kind] for kind in kinds if kind in _USUAL}
    left = (hue for hue in range(HUES) if hue not in usual.values())
    return {kind: f"h{usual[kind] if kind in usual else next(left)}" for kind in kinds}


def _legend(colours: dict[str, str], y: float) -> Iterator[str]:
    x = float(_MARGIN)
    for kind, colour in colours.items():
        yield rect(x, y, _LEGEND, _LEGEND, colour)
        yield text(x + _LEGEND + 4, y + 10, kind)
        x += _LEGEND + 18 + room([kind])


def _middle_tile(recording: Recording) -> tuple[Track, RecordedSpan] | None:
    """A tile in the middle of the first block that multiplies: of its warpgroup with the most kinds of spans."""
    tracks = [track for track in recording.of_block(recording.blocks[0]) if track.tiles]
    if not tracks:
        return None
    track = max(tracks, key=lambda track: len({span.kind for span in track.spans}))
    return track, track.tiles[len(track.tiles) // 2]


@dataclass(frozen=True)
class _Window:
    """A part of the time, from ``start`` to ``end`` in the recording's unit, over the width of the picture."""

    recording: Recording
    start: float
    end: float
    colours: dict[str, str]

    @property
    def left(self) -> float:
        return _MARGIN + room(track.role for track in self.recording.tracks) + 6

    @property
    def width(self) -> float:
        return _WIDTH - _MARGIN - self.left

    def x(self, time: Any) -> Any:
        return self.left + (time - self.start) / (self.end - self.start) * self.width

    def draw_block(self, block: int, y: float, shapes: list[str], *, closely: bool) -> float:
        """Draw the lines of a block from ``y`` down; where the next thing goes. ``closely``: span by span, with what
        each is, where they are not too many."""
        tracks = self.recording.of_block(block)
        lost = sum(track.lost for track in tracks)
        words = f"block {block}, SM {tracks[0].sm}" + (f"; its first {lost:,} spans were overwritten" if lost else "")
        shapes.append(text(_MARGIN, y + 10, words, "s"))
        y += 15
        for track in tracks:
            shapes.append(text(_MARGIN, y + 10, track.role))
            inside = [span for span in track.steps if self._overlaps(track, span)]
            if closely and len(inside) <= _MOST_SPANS:
                shapes += self._spans(track, inside, y)
            else:
                shapes += self._columns(track, inside, y)
            shapes += self._tiles(track, y)
            y += _ROW + _GAP
        return y + 4

    def draw_axis(self, y: float, shapes: list[str]) -> float:
        """Draw the scale below ``y``; where the next thing goes."""
        shapes.append(path([(self.left, y), (self.left + self.width, y)], "l"))
        unit = "us" if self.recording.measured else "steps"
        ticks = round_ticks(self.start, self.end, _TICKS)
        for number_of, (tick, label) in enumerate(ticks, 1):
            x, last = self.x(tick), number_of == len(ticks)
            shapes.append(path([(x, y), (x, y + 4)], "l"))
            shapes.append(text(x, y + 15, f"{label} {unit}" if last else label, "s e" if last else "s m"))
        return y + 24

    def _overlaps(self, track: Track, span: RecordedSpan) -> bool:
        place = self.recording.place
        return place(track, span.end) > self.start and place(track, span.start) < self.end

    def _clipped(self, track: Track, span: RecordedSpan) -> tuple[float, float]:
        """The left side of a span and its width, as far as it lies in the window."""
        sides = (self.recording.place(track, at) for at in (span.start, span.end))
        left, right = (self.x(min(max(side, self.start), self.end)) for side in sides)
        return left, right - left

    def _spans(self, track: Track, spans: Sequence[RecordedSpan], y: float) -> Iterator[str]:
        for span in spans:
            x, width = self._clipped(track, span)
            what = f"{span.kind}, step {span.number}: {span.length:,} "
            what += "cycles" if self.recording.measured else "steps of the emulator"
            yield rect(x, y, width, _ROW, self.colours[span.kind], what)

    def _columns(self, track: Track, spans: Sequence[RecordedSpan], y: float) -> Iterator[str]:
        """The spans by pixels: runs of equal colour, a path for each."""
        count = math.floor(self.width)
        edges = np.linspace(self.start, self.end, count + 1)
        kinds = list(self.colours)
        taken = np.zeros((len(kinds) + 1, count))
        for row, kind in enumerate(kinds, 1):
            taken[row] = _time_in_columns(self.recording, track, [span for span in spans if span.kind == kind], edges)
        taken[0] = (self.end - self.start) / count - taken.sum(axis=0)
        most = taken.argmax(axis=0)
        begins = np.flatnonzero(np.diff(most, prepend=-1))
        sides: dict[int, list[str]] = {}
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), count], strict=True):
            if most[begin]:
                run = f"M{number(self.left + begin)} {number(y)}h{end - begin}v{_ROW}h{begin - end}z"
                sides.setdefault(int(most[begin]), []).append(run)
        for kind_number, runs in sides.items():
            yield f'<path d="{"".join(runs)}" class="{self.colours[kinds[kind_number - 1]]}"/>'

    def _tiles(self, track: Track, y: float) -> Iterator[str]:
        for tile in track.tiles:
            if self._overlaps(track, tile):
                x, width = self._clipped(track, tile)
                yield rect(x, y - 1, width, _ROW + 2, "l", f"tile {tile.number}")


def _time_in_columns(recording: Recording, track: Track, spans: Sequence[RecordedSpan], edges: Any) -> Any:
    """The time of ``spans``, which follow one another, between each two of ``edges``."""
    if not spans:
        return np.zeros(len(edges) - 1)
    bounds = np.array([recording.place(track, at) for span in spans for at in (span.start, span.end)])
    lengths = np.zeros(len(bounds))
    lengths[1::2] = bounds[1::2] - bounds[::2]
    return np.diff(np.interp(edges, bounds, lengths.cumsum()))
