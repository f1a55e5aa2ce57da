"""Drawings of samples as small SVGs in the colours of ``style.css``: ratios as bars, distributions as boxes."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from tirgemm.analysis.figures.svg import circle, number, path, rect, room, round_ticks, text
from tirgemm.service.pages.figure_texts import us_text

# A ratio's bar: its middle is 1, each end a factor of 4.
_HALF, _HIGH, _FACTOR = 40.0, 16.0, 4.0
_WIDTH, _ROW, _MARGIN = 760.0, 26.0, 8.0
_MOST_DOTS = 80


def ratio_bar(name: str, ratio: float, low: float | None, high: float | None) -> Markup:
    """A bar from 1 to the ratio of the baseline's time to the kernel's, on a logarithmic scale: to the right where the
    kernel is faster; the line over it is where the middle half of the samples lies."""
    x = _across(ratio)
    kind = "faster" if ratio >= 1 else "slower"
    shapes = [rect(min(x, _HALF), 3, abs(x - _HALF), 10, kind), path([(_HALF, 0), (_HALF, _HIGH)], "one")]
    label = f"{ratio:.2f} times as fast as {name}"
    if low is not None and high is not None:
        left, right = _across(low), _across(high)
        shapes.append(path([(left, 8), (right, 8)], "spread"))
        shapes += [path([(end, 5), (end, 11)], "spread") for end in (left, right)]
        label += f", the middle half of the samples {low:.2f} to {high:.2f}"
    return drawing("ratio", "img", label, 2 * _HALF, _HIGH, shapes)


def _across(ratio: float) -> float:
    return _HALF * (1 + max(-1.0, min(1.0, math.log(max(ratio, 1e-9)) / math.log(_FACTOR))))


def sample_boxes(rows: Sequence[tuple[str, Sequence[float]]], title: str) -> Markup:
    """Samples in microseconds, a row a name: a dot each, or every so-many-th of many, behind a box of the middle half
    with a line at the median. The axis begins and ends with the samples, but for those that are so late that the
    boxes would be lines beside them: of these it has the number."""
    known = [(name, sorted(samples)) for name, samples in rows if samples]
    if not known:
        return Markup("")
    quartiles: list[list[float]] = [np.quantile(samples, (0.25, 0.5, 0.75)).tolist() for _, samples in known]
    end = max(last for _, _, last in quartiles) + 4 * max(last - first for first, _, last in quartiles)
    low, high = min(each[0] for _, each in known), min(end, max(each[-1] for _, each in known))
    spare = 0.04 * (high - low) or 0.05 * high or 1.0
    low, high = low - spare, high + spare
    left, right = _MARGIN + min(220.0, room(name for name, _ in known)) + 8, _WIDTH - _MARGIN - 70

    def across(us: float) -> float:
        return left + (us - low) / (high - low) * (right - left)

    shapes, y = [], 4.0
    for row, ((name, samples), (first, median, last)) in enumerate(zip(known, quartiles, strict=True)):
        middle = y + _ROW / 2
        near = samples[: bisect.bisect_right(samples, end)]
        shown = near[:: max(1, -(-len(near) // _MOST_DOTS))]
        # Spread a little up and down, so that dots beside each other are seen apart.
        shapes += [circle(across(us), middle + (at * 5 % 13 - 6) * 0.8, 1.6, "dot", "") for at, us in enumerate(shown)]
        shapes.append(rect(across(first), y + 5, max(0.5, across(last) - across(first)), _ROW - 10, f"box{row % 2}"))
        shapes.append(path([(across(median), y + 3), (across(median), y + _ROW - 3)], "median"))
        shapes.append(text(_MARGIN, middle + 4, name))
        shapes.append(text(right + 6, middle + 4, f"{us_text(median)} µs"))
        if len(near) < len(samples):
            shapes.append(text(right, middle + 4, f"{len(samples) - len(near)} further right →", "e"))
        y += _ROW
    shapes.append(path([(left, y + 2), (right, y + 2)], "axis"))
    for us, label in round_ticks(low, high, 6):
        shapes += [path([(across(us), y + 2), (across(us), y + 6)], "axis"), text(across(us), y + 18, label, "m")]
    y += 26
    return drawing("samples", "img", title, _WIDTH, y, shapes)


def drawing(kind: str, role: str, title: str, width: float, height: float, shapes: Sequence[str]) -> Markup:
    """The SVG of some shapes in a class; without a ``title`` it is hidden from screen readers."""
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    label = f' aria-label="{escape(title)}"' if title else ' aria-hidden="true"'
    return Markup(f'<svg class="{kind}" role="{role}"{label} {size}>{"".join(shapes)}</svg>')
