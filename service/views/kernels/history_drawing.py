"""A drawing of a problem's kernels over the days on which they were made, and where their environment changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tirgemm.analysis.figures.svg import circle, path, room, round_ticks, text
from tirgemm.service.pages.figure_texts import us_text
from tirgemm.service.pages.sample_drawings import drawing
from tirgemm.service.views.kernels.kernel_history import changed

_WIDTH, _HEIGHT, _MARGIN, _LINE = 760.0, 150.0, 8.0, 14.0
# Changes are told in so many rows above the drawing, each where there is room for it.
_ROWS = 3


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A kernel: when it was made, its median in microseconds a call, None where nobody measured it, and what it was
    built and measured under. ``own``: it is the kernel whose page this is."""

    created_at: str
    us: float | None
    environment: Mapping[str, str]
    own: bool


def history_drawing(points: Sequence[HistoryPoint]) -> Markup:
    """A dot a measured kernel, the oldest on the left, one step each; a dashed line where something of the environment
    is another than of the one before, with what it became. Empty for fewer than two."""
    timed = sorted(((point, point.us) for point in points if point.us), key=lambda pair: pair[0].created_at)
    if len(timed) < 2:
        return Markup("")
    times = [us for _, us in timed]
    top, high = _ROWS * _LINE + 6, max(times) * 1.1
    left, right = _MARGIN + room([us_text(high)]) + 8, _WIDTH - 40
    step = (right - left) / len(timed)

    def up(us: float) -> float:
        return top + _HEIGHT * (1 - us / high)

    shapes = [text(_MARGIN, top - 4, "µs")]
    for us, label in round_ticks(0.0, high, 4):
        shapes += [path([(left, up(us)), (right, up(us))], "grid"), text(left - 6, up(us) + 4, label, "e")]
    ends = [left] * _ROWS
    for at, words in _changes([point for point, _ in timed]):
        x = left + at * step
        shapes.append(path([(x, top), (x, top + _HEIGHT)], "change"))
        row = next((row for row, end in enumerate(ends) if end <= x), None)
        if row is not None and x + room([words]) <= _WIDTH:
            ends[row] = x + room([words]) + 10
            shapes += [path([(x, row * _LINE + 4), (x, top)], "change"), text(x + 3, (row + 1) * _LINE - 2, words)]
    free = left
    for at, (point, us) in enumerate(timed):
        x, day = left + (at + 0.5) * step, point.created_at[:10]
        tip = f"{us_text(us)} µs, {point.created_at[:16].replace('T', ' ')}{', this kernel' if point.own else ''}"
        shapes.append(circle(x, up(us), 4, "own" if point.own else "other", tip))
        if x - room([day]) / 2 >= free and (not at or timed[at - 1][0].created_at[:10] != day):
            free = x + room([day]) / 2 + 8
            shapes.append(text(x, top + _HEIGHT + _LINE + 2, day, "m"))
    own = next((f"; this one {us_text(us)}" for point, us in timed if point.own), "")
    first, last = (timed[at][0].created_at[:10] for at in (0, -1))
    title = (
        f"{len(timed)} kernels from {first} to {last}, in microseconds a call: the oldest {us_text(times[0])}, the "
        f"newest {us_text(times[-1])}, the fastest {us_text(min(times))}{own}"
    )
    return drawing("history", "img", title, _WIDTH, top + _HEIGHT + 2 * _LINE, shapes)


def _changes(points: Sequence[HistoryPoint]) -> Iterator[tuple[int, str]]:
    """Before which points something is another than before, with what it became."""
    for at in range(1, len(points)):
        now = changed(points[at - 1].environment, points[at].environment)
        known = [f"{name} {version}" for name, version in now.items() if version is not None]
        if known:
            yield at, ", ".join(known)
