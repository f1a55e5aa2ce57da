"""Pictures of a tuning job as SVG: candidates over time, predicted against measured times, and the finalists' race."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tirgemm.analysis.figures.svg import number, room, round_step
from tirgemm.events import RaceEntry
from tirgemm.service.pages.figure_texts import us_text
from tirgemm.service.views.job_history import CandidatePoint, JobHistory

WIDTH, HEIGHT = 720, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 24, 44
# Of each family one, drawn around a point, in the order of the families; the script draws the same. The page defines
# them as markers, so that a point is no more than its place: there may be thousands.
MARKS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "M-3 -3h6v6h-6z",
    "M-4 3l4-7 4 7z",
    "M-4 0l4-4 4 4-4 4z",
)
# Of what became of a candidate without a time: a cross, an unequal sign, a flash, an hourglass, and a plus for what a
# newer worker may say.
FAILURE_MARKS = {
    "build_failed": "M-3.5-3.5l7 7m0-7l-7 7",
    "wrong": "M-4-1.5h8M-4 1.5h8M-2 4.5l4-9",
    "crashed": "M2-4.5L-2.5.5h5L-2 4.5",
    "timed_out": "M-3.5-4h7l-7 8h7z",
    "other": "M-4 0h8M0-4v8",
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic or linear axis from ``low`` to ``high`` over pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = True

    def at(self, value: float) -> float:
        low, high, here = (self.low, self.high, value)
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (here - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values within, two to ten of them."""
        if not self.log:
            step = round_step((self.high - self.low) / 5)
            return [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1,), (1, 2, 5), tuple(range(1, 10)), tuple(n / 2 for n in range(2, 20))):
            values = [digit * 10.0**decade for decade in decades for digit in digits]
            inside = [value for value in values if self.low <= value <= self.high]
            if len(inside) >= 3:
                return inside if len(inside) <= 12 else inside[:: math.ceil(len(inside) / 12)]
        return [self.low, self.high]


def timeline_picture(history: JobHistory) -> Markup:
    """Each candidate's time over the seconds since the job was started, the best so far as a line; what failed is a
    mark of its status at the top."""
    measured = [point for point in history.candidates if point.us]
    if not history.candidates:
        return Markup("")
    times = [point.us for point in measured if point.us] or [1.0]
    across = Axis(0.0, max(1.0, *(p.seconds for p in history.candidates)), _LEFT, WIDTH - _RIGHT, log=False)
    up = Axis(0.9 * min(times), 1.1 * max(times), HEIGHT - _BOTTOM, _TOP + 14)
    shapes = [_axes(across, up, "seconds since the job was started", "microseconds a call")]
    shapes += _families(history, [(p, across.at(p.seconds), up.at(p.us)) for p in measured if p.us])
    failed = failures(history)
    for status, points in failed.items():
        places = [(across.at(point.seconds), _TOP + 5.0) for point in points]
        shapes.append(_points(places, f"failed-{status}", status.replace("_", " ")))
    best = _best_line(measured)
    if best:
        steps = f"M{number(across.at(best[0][0]))} {number(up.at(best[0][1]))}"
        steps += "".join(f"H{number(across.at(seconds))}V{number(up.at(us))}" for seconds, us in best[1:])
        shapes.append(f'<path d="{steps}H{number(across.end)}" class="best"/>')
    words = f"{len(measured)} measured candidates over time"
    if best:
        words += f", the best {best[-1][1]:.4g} microseconds a call"
    without = ", ".join(f"{len(points)} {status.replace('_', ' ')}" for status, points in failed.items())
    return _svg(f"{words}{f'; {without}' if without else ''}", HEIGHT, shapes)


def failures(history: JobHistory) -> dict[str, list[CandidatePoint]]:
    """The candidates without a time by their status, in the order of the FAILURE_MARKS."""
    failed: dict[str, list[CandidatePoint]] = {status: [] for status in FAILURE_MARKS}
    for point in history.candidates:
        if not point.us:
            failed[point.status if point.status in failed else "other"].append(point)
    return {status: points for status, points in failed.items() if points}


def prediction_picture(history: JobHistory) -> Markup:
    """What the model expected of each measured candidate, across, and what it took, up; on the line both are equal."""
    points = [(p, p.predicted_us, p.us) for p in history.candidates if p.predicted_us and p.us]
    if not points:
        return Markup("")
    values = [value for _, *both in points for value in both]
    low, high = 0.85 * min(values), 1.15 * max(values)
    across, up = Axis(low, high, _LEFT, WIDTH - _RIGHT), Axis(low, high, HEIGHT - _BOTTOM, _TOP)
    shapes = [_axes(across, up, "predicted microseconds a call", "measured microseconds a call")]
    line = f"M{number(across.start)} {number(up.start)}L{number(across.end)} {number(up.end)}"
    shapes.append(f'<path d="{line}" class="equal"/>')
    shapes += _families(history, [(point, across.at(predicted), up.at(us)) for point, predicted, us in points])
    errors = sorted(us / predicted for _, predicted, us in points)
    words = f"{len(points)} candidates, measured against predicted; half of them took at least"
    return _svg(f"{words} {errors[len(errors) // 2]:.2f} times what was predicted", HEIGHT, shapes)


def race_picture(entries: Sequence[RaceEntry]) -> Markup:
    """A bar for each finalist's median, with its quartiles as a whisker; the shortest is the fastest."""
    timed = [entry for entry in entries if entry.median_us]
    if not timed:
        return Markup("")
    names = [_race_name(entries, entry) for entry in timed]
    left = room(names) + 16
    across = Axis(0.0, max(entry.high_us or entry.median_us or 0.0 for entry in timed), left, WIDTH - 90, log=False)
    shapes = []
    for place, (name, entry) in enumerate(zip(names, timed, strict=True)):
        y, end = 8 + 24 * place, across.at(entry.median_us or 0.0)
        kind = "theirs" if entry is entries[0] else "ours"
        shapes.append(f'<text x="4" y="{y + 13}">{escape(name)}</text>')
        shapes.append(f'<rect x="{number(left)}" y="{y}" width="{number(end - left)}" height="18" class="{kind}"/>')
        if entry.low_us is not None and entry.high_us is not None:
            low, high = number(across.at(entry.low_us)), number(across.at(entry.high_us))
            shapes.append(f'<path d="M{low} {y + 4}v10m0-5H{high}m0-5v10" class="whisker"/>')
        words = f"{us_text(entry.median_us)} µs"
        shapes.append(f'<text x="{number(across.end + 8)}" y="{y + 13}">{words}</text>')
    fastest = min(timed, key=lambda entry: entry.median_us or 0.0)
    title = (
        f"{len(timed)} finalists; the fastest is {_race_name(entries, fastest)}, {fastest.median_us:.4g} microseconds"
    )
    return _svg(title, 24 * len(timed) + 12, shapes)


def _race_name(entries: Sequence[RaceEntry], entry: RaceEntry) -> str:
    family = entry.config.partition("(")[0]
    return f"{family} {entry.digest[:8]}{' (default)' if entry is entries[0] else ''}"


def _best_line(measured: Sequence[CandidatePoint]) -> list[tuple[float, float]]:
    """Where a candidate is faster than all before it: the seconds and its time. None where m is a range, of whose sizes
    each has its own best."""
    best: list[tuple[float, float]] = []
    for point in measured:
        if point.m:
            return []
        if point.us and (not best or point.us < best[-1][1]):
            best.append((point.seconds, point.us))
    return best


def _families(history: JobHistory, points: Sequence[tuple[CandidatePoint, float, float]]) -> Iterable[str]:
    """A path of marks for each family."""
    for place, family in enumerate(history.families):
        marks = [(x, y) for point, x, y in points if point.family == family]
        if marks:
            yield _points(marks, f"mark{place % len(MARKS)}", family)


def _points(places: Sequence[tuple[float, float]], marker: str, title: str) -> str:
    """The ``marker`` of the page at each place."""
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in places)
    drawn = " ".join(f'marker-{place}="url(#{marker})"' for place in ("start", "mid", "end"))
    return f'<path d="{path}" class="points" {drawn}><title>{escape(title)}</title></path>'


def _axes(across: Axis, up: Axis, below: str, beside: str) -> str:
    lines = "".join(f"M{number(across.at(value))} {number(up.start)}V{number(up.end)}" for value in across.ticks)
    lines += "".join(f"M{number(across.start)} {number(up.at(value))}H{number(across.end)}" for value in up.ticks)
    labels = [
        f'<text x="{number(across.at(value))}" y="{number(up.start + 15)}" class="middle">{value:g}</text>'
        for value in across.ticks
    ]
    labels += [
        f'<text x="{number(across.start - 6)}" y="{number(up.at(value) + 4)}" class="end">{value:.4g}</text>'
        for value in up.ticks
    ]
    middle = number((across.start + across.end) / 2)
    labels.append(f'<text x="{middle}" y="{number(up.start + 34)}" class="middle">{below}</text>')
    labels.append(f'<text x="4" y="12">{beside}</text>')
    return f'<path d="{lines}" class="grid"/>{"".join(labels)}'


def _svg(title: str, height: float, shapes: Iterable[str]) -> Markup:
    head = f'<svg class="live" role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {number(height)}">'
    return Markup(f"{head}{''.join(shapes)}</svg>")
