"""Drawings of a space as SVGs in the colours of ``style.css``: the heat map over two knobs, parallel coordinates, and
the bars of importance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from tirgemm.analysis.figures.svg import path, rect, room, text
from tirgemm.service.pages.figure_texts import us_text
from tirgemm.service.pages.sample_drawings import drawing
from tirgemm.service.views.spaces.family_space import ConfigLine, HeatCell, HeatMap, ParallelLines

_MARGIN, _LINE = 8.0, 14.0
_CELL_WIDTH, _CELL_HEIGHT = 66.0, 38.0
# A cell's colour is by how many times slower than the family's fastest its own is: up to each of these, or beyond.
_STEPS = (1.02, 1.05, 1.1, 1.25, 2.0)
_LEAST_AXIS, _MOST_AXIS, _AXIS_HEIGHT, _WIDTH = 60.0, 130.0, 300.0, 1120.0
_BAR_WIDTH = 160.0


def heat_map_drawing(heat: HeatMap, url: Callable[[str], str]) -> Markup:
    """A column a value of ``x``, a row a value of ``y``; each cell tells its fastest time and its counts, and leads to
    its fastest candidate, whose address ``url`` makes of the config's hash."""
    left = _MARGIN + room([heat.y.knob, *map(str, heat.y.values)]) + 10
    top = 2 * _LINE + 12
    shapes = [text(left, _LINE, f"{heat.x.knob} →"), text(_MARGIN, top - 6, f"{heat.y.knob} ↓")]
    for column, value in enumerate(heat.x.values):
        shapes.append(text(left + (column + 0.5) * _CELL_WIDTH, top - 6, str(value), "m strong"))
    for row, value in enumerate(heat.y.values):
        shapes.append(text(left - 8, top + (row + 0.5) * _CELL_HEIGHT + 4, str(value), "e strong"))
    columns = {value: at for at, value in enumerate(heat.x.values)}
    rows = {value: at for at, value in enumerate(heat.y.values)}
    for cell in sorted(heat.cells, key=lambda each: (rows[each.y], columns[each.x])):
        x, y = left + columns[cell.x] * _CELL_WIDTH, top + rows[cell.y] * _CELL_HEIGHT
        shapes.append(_cell(heat, cell, x, y, url(cell.config_hash)))
    bottom = top + len(heat.y.values) * _CELL_HEIGHT + 10
    legend, end = _legend(left, bottom)
    width = max(left + len(heat.x.values) * _CELL_WIDTH, end) + _MARGIN
    title = (
        f"Heat map of {heat.y.knob} by {heat.x.knob}: {len(heat.cells)} of "
        f"{len(heat.x.values) * len(heat.y.values)} cells have candidates"
    )
    return drawing("heat", "group", title, width, bottom + 2 * _LINE, [*shapes, *legend])


def _cell(heat: HeatMap, cell: HeatCell, x: float, y: float, url: str) -> str:
    counts = ((cell.measured, "measured"), (cell.failed, "failed"), (cell.pruned, "pruned"))
    said = ", ".join(f"{count} {word}" for count, word in counts if count)
    time = "no time" if cell.us is None else f"fastest {us_text(cell.us)} µs"
    label = f"{heat.x.knob} {cell.x}, {heat.y.knob} {cell.y}: {time}; {said}"
    shapes = [rect(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, _shade(heat, cell))]
    middle = x + _CELL_WIDTH / 2
    if cell.us is None:
        shapes.append(text(middle, y + 16, "failed" if cell.failed else "pruned", "m"))
    else:
        shapes.append(text(middle, y + 16, us_text(cell.us), "m strong"))
    short = [str(cell.measured)] if cell.measured else []
    short += [f"{count} {mark}" for count, mark in ((cell.failed, "✗"), (cell.pruned, "–")) if count]
    shapes.append(text(middle, y + 30, ", ".join(short), "m small"))
    kind = "cell dark" if cell.us is not None and _step(heat, cell) < 2 else "cell"
    return (
        f'<a href="{escape(url)}" class="{kind}" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(shapes)}</a>"
    )


def _step(heat: HeatMap, cell: HeatCell) -> int:
    assert cell.us is not None
    assert heat.best_us is not None
    return next((at for at, limit in enumerate(_STEPS) if cell.us / heat.best_us <= limit), len(_STEPS))


def _shade(heat: HeatMap, cell: HeatCell) -> str:
    if cell.us is not None:
        return f"heat{_step(heat, cell)}"
    return "bad" if cell.failed else "none"


def _legend(left: float, top: float) -> tuple[list[str], float]:
    """The colours with what they stand for, and where they end."""
    words = "time over the fastest:"
    entries = [(f"heat{at}", f"≤ {limit:g}") for at, limit in enumerate(_STEPS)]
    entries += [(f"heat{len(_STEPS)}", "more"), ("bad", "✗ failed"), ("none", "– pruned")]
    shapes = [text(left, top + 11, words)]
    x = left + room([words]) + 8
    for kind, word in entries:
        shapes += [rect(x, top, 16, 14, kind), text(x + 21, top + 11, word)]
        x += 34 + room([word])
    return shapes, x


def parallel_drawing(parallel: ParallelLines, url: Callable[[str], str]) -> Markup:
    """An axis a knob, with its values from the bottom up, and the time on the last one, fastest on top; what has no
    time ends beneath it. A line leads to its candidate, whose address ``url`` makes of the config's hash."""
    axes = parallel.axes
    times = [line.us for line in parallel.lines if line.us is not None]
    top, height = 3 * _LINE, max(_AXIS_HEIGHT, _LINE * max((len(axis.values) for axis in axes), default=1))
    left = _MARGIN + room(map(str, axes[0].values if axes else ())) + 6
    right = room(["failed or pruned 00"]) + _MARGIN
    apart = min(_MOST_AXIS, max(_LEAST_AXIS, (_WIDTH - left - right) / max(1, len(axes))))
    xs = [left + at * apart for at in range(len(axes) + 1)]
    low, high = (math.log(min(times)), math.log(max(times))) if times else (0.0, 0.0)

    def up(at: int, place: int) -> float:
        count = len(axes[at].values)
        return top + height - (place + 0.5) * height / count if place >= 0 else top + height + _LINE

    def time_place(us: float | None) -> float:
        if us is None:
            return top + height + _LINE
        return top + 4 + (height - 8) * (math.log(us) - low) / ((high - low) or 1.0)

    def points(line: ConfigLine) -> list[tuple[float, float]]:
        return [*((xs[at], up(at, place)) for at, place in enumerate(line.places)), (xs[-1], time_place(line.us))]

    shapes = [_line(line, points(line), url(line.config_hash)) for line in parallel.lines]
    for at, axis in enumerate(axes):
        # Names in two rows, for neighbours may be longer than the axes are apart.
        shapes += _axis(xs[at], top, height, axis.knob, at % 2 * _LINE)
        shapes += [text(xs[at] - 5, up(at, place) + 4, str(value), "e") for place, value in enumerate(axis.values)]
    shapes += _axis(xs[-1], top, height, "time, µs", len(axes) % 2 * _LINE)
    if times:
        above = -_LINE
        for us, name in ((min(times), "fastest"), (statistics.median(times), "median"), (max(times), "slowest")):
            if time_place(us) - above >= _LINE:
                above = time_place(us)
                shapes.append(text(xs[-1] + 6, above + 4, f"{us_text(us)} {name}"))
    if any(line.us is None for line in parallel.lines):
        shapes.append(text(xs[-1] + 6, time_place(None) + 4, "failed or pruned"))
    title = (
        f"Parallel coordinates of {parallel.candidates} candidates over {len(axes)} knobs and their time; the fastest "
        f"{parallel.fast} are highlighted"
    )
    return drawing("parallel", "group", title, xs[-1] + right, top + height + 2 * _LINE, shapes)


def _axis(x: float, top: float, height: float, name: str, raised: float) -> Sequence[str]:
    return [path([(x, top), (x, top + height)], "axis"), text(x, top - 8 - raised, name, "m strong")]


def _line(line: ConfigLine, points: Sequence[tuple[float, float]], url: str) -> str:
    label = f"{line.config_hash[:8]}: {f'{us_text(line.us)} µs' if line.us is not None else 'failed or pruned'}"
    return f'<a href="{escape(url)}" aria-label="{escape(label)}">{path(points, "hit")}{path(points, _kind(line))}</a>'


def _kind(line: ConfigLine) -> str:
    return "fast" if line.is_fast else "lost" if line.us is None else "line"


def share_bar(share: float) -> Markup:
    """A bar as long as a share of 1; the share itself stands beside it."""
    return drawing("share", "presentation", "", _BAR_WIDTH, 12, [rect(0, 1, _BAR_WIDTH * share, 10, "ours")])
