"""Charts of a kernel on its device as SVG text: the waves of blocks over the SMs, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tirgemm.analysis.figures.svg import circle, number, path, picture, rect, room, text
from tirgemm.errors import InvalidRequest

_TOP = 30
_MARGIN = 8
_WIDTH = 760
_MOST_WAVES = 12


def waves_picture(items: int, slots: int, *, what: str = "blocks", units: int = 0) -> str:
    """``items`` of equal work in waves of ``slots`` at a time, a bar a wave; what the last one leaves idle is hollow.

    ``units``: SMs, for a mark at each where the slots are a multiple of them. Raises InvalidRequest below 1.
    """
    if items < 1 or slots < 1:
        raise InvalidRequest(f"{items} {what} in waves of {slots}; both start at 1")
    turns = -(-items // slots)
    tail = items - (turns - 1) * slots
    shown = list(range(turns)) if turns <= _MOST_WAVES else [*range(_MOST_WAVES - 2), -1, turns - 1]
    left, high = _MARGIN + room(["wave 000000"]), 16
    bar = _WIDTH - left - _MARGIN - room(["0000 of 0000"])
    shapes, y = [], float(_TOP)
    for wave in shown:
        if wave < 0:
            shapes.append(text(_MARGIN, y + 12, f"… {turns - len(shown) + 1} more full waves", "s"))
            y += high + 3
            continue
        busy = tail if wave == turns - 1 else slots
        filled = bar * busy / slots
        tip = f"wave {wave + 1}: {busy} of {slots} slots"
        shapes.append(text(_MARGIN, y + 12, f"wave {wave + 1}", "s"))
        shapes.append(rect(left, y, filled, high, "h4", tip))
        if busy < slots:
            shapes.append(rect(left + filled, y, bar - filled, high, "d", f"{slots - busy} slots idle"))
        shapes.append(text(left + bar + 4, y + 12, f"{busy} of {slots}"))
        y += high + 3
    if units > 1 and slots % units == 0:
        ticks = "".join(f"M{number(left + bar * unit / units)} {number(y)}v4" for unit in range(units + 1))
        shapes.append(f'<path d="{ticks}" class="l"/>')
        shapes.append(text(left, y + 15, f"{units} SMs, {slots // units} at a time on each", "s"))
        y += 18
    idle = 1 - items / (turns * slots)
    heading = f"{items} {what} in {turns} wave{'s' if turns > 1 else ''} of {slots}: {idle:.1%} of the slots idle"
    return picture(_WIDTH, y + 6, heading, shapes)


def roofline_picture(
    peaks: Sequence[tuple[str, float]],
    bandwidths: Sequence[tuple[str, float]],
    points: Sequence[tuple[str, float, float]],
    title: str = "",
) -> str:
    """Log-log: FLOP a byte across, TFLOP/s up.

    ``peaks``: (name, TFLOP/s), flat; ``bandwidths``: (name, GB/s), slopes that end at the highest peak; ``points``:
    (name, FLOP a byte, TFLOP/s). Raises InvalidRequest without a peak and a bandwidth, and for a number that is not
    positive.
    """
    values = [*(v for _, v in peaks), *(v for _, v in bandwidths), *(v for point in points for v in point[1:])]
    if not peaks or not bandwidths or not all(math.isfinite(v) and v > 0 for v in values):
        raise InvalidRequest("a roofline needs a peak and a bandwidth, and positive numbers throughout")
    top = max(value for _, value in peaks)
    ridges = [1e3 * top / gbps for _, gbps in bandwidths]
    xs = [*ridges, *(point[1] for point in points)]
    x0, x1 = math.floor(math.log10(min(xs) / 3)), math.log10(max(xs) * 4)
    ys = [top, *(value for _, value in peaks), *(point[2] for point in points)]
    y0, y1 = math.floor(math.log10(min(ys) / 3)), math.log10(top * 2)
    left, right, upper, lower = 58, _WIDTH - 20, _TOP + 10, 400

    def across(intensity: float) -> float:
        return left + (math.log10(intensity) - x0) / (x1 - x0) * (right - left)

    def up(tflops: float) -> float:
        return lower - (math.log10(tflops) - y0) / (y1 - y0) * (lower - upper)

    shapes = []
    for decade in range(x0, math.floor(x1) + 1):
        x = across(10.0**decade)
        shapes += [path([(x, upper), (x, lower)], "l"), text(x, lower + 15, f"{10.0**decade:g}", "s m")]
    for decade in range(y0, math.floor(y1) + 1):
        y = up(10.0**decade)
        shapes += [path([(left, y), (right, y)], "l"), text(left - 5, y + 4, f"{10.0**decade:g}", "s e")]
    shapes.append(text((left + right) / 2, lower + 32, "FLOP a byte", "m"))
    shapes.append(text(_MARGIN, upper - 6, "TFLOP/s"))
    least = 10.0**y0
    for name, tflops in peaks:
        start = max(10.0**x0, min(1e3 * tflops / gbps for _, gbps in bandwidths))
        shapes.append(path([(across(start), up(tflops)), (right, up(tflops))], "o"))
        shapes.append(text(right - 4, up(tflops) - 9, f"{name} {_rate(tflops)} TFLOP/s", "e"))
    slope = math.degrees(math.atan2((lower - upper) / (y1 - y0), (right - left) / (x1 - x0)))
    for name, gbps in bandwidths:
        begin, ridge = max(10.0**x0, 1e3 * least / gbps), 1e3 * top / gbps
        shapes.append(path([(across(begin), up(begin * gbps / 1e3)), (across(ridge), up(top))], "g"))
        # Along the slope, a little above it.
        at = begin * (ridge / begin) ** 0.08
        x, y = across(at), up(at * gbps / 1e3)
        turned = f'transform="rotate({number(-slope)} {number(x)} {number(y)})"'
        shapes.append(f"<g {turned}>{text(x, y - 5, f'{name} {_rate(gbps)} GB/s', 's')}</g>")
    for name, intensity, tflops in points:
        x, y = across(intensity), up(tflops)
        tip = f"{name}: {_rate(intensity)} FLOP a byte, {_rate(tflops)} TFLOP/s"
        shapes.append(circle(x, y, 4.5, "r", tip))
        over = x + room([name]) + 12 > right
        shapes.append(text(x - 8 if over else x + 8, y + 14, name, "e" if over else ""))
    return picture(_WIDTH, lower + 42, title or "roofline", shapes)


def _rate(value: float) -> str:
    """A rate with the digits that can be read off a chart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
