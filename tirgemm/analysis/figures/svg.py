"""SVG primitives of the drawings: rectangles, text, paths, ticks.

Shapes have classes and no styles of their own: colours, light and dark, are those of ``.tg`` in the pages' style sheet,
``service/pages/files/style.css``. A content security policy may so forbid all inline styles and scripts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

HUES = 8
CHARACTER = 6.2  # width of one at the size of labels, to leave room by


def round_step(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below ``least``: the step of an axis."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)


def round_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Round values from ``low`` to ``high``, at most ``count`` steps of them, with their labels."""
    step = round_step((high - low) / count)
    digits = max(0, -math.floor(math.log10(step)))
    ticks = (tick * step for tick in range(math.ceil(low / step), math.floor(high / step) + 1))
    return [(tick, f"{tick:,.{digits}f}") for tick in ticks]


def number(value: float) -> str:
    """A coordinate, without digits that nobody sees."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def rect(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """A rectangle of a class; ``tip`` is told when it is pointed at."""
    head = f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" class="{kind}"'
    return f"{head}><title>{escape(tip)}</title></rect>" if tip else f"{head}/>"


def rects(corners: Iterable[tuple[float, float]], width: float, height: float, kind: str) -> str:
    """Many rectangles of one size and class, in a few characters each."""
    sides = f"h{number(width)}v{number(height)}h{number(-width)}z"
    return f'<path d="{"".join(f"M{number(x)} {number(y)}{sides}" for x, y in corners)}" class="{kind}"/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of words, its baseline at ``y``."""
    of = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}"{of}>{escape(words)}</text>'


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    return f'<path d="M{"L".join(f"{number(x)} {number(y)}" for x, y in points)}" class="{kind}"/>'


def circle(x: float, y: float, radius: float, kind: str, tip: str = "") -> str:
    """A dot of a class."""
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" '
        f'class="{kind}"><title>{escape(tip)}</title></circle>'
    )


def picture(width: float, height: float, title: str, shapes: Iterable[str]) -> str:
    """The SVG of some shapes; ``title`` is its heading and what a screen reader says."""
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="tg" role="img" aria-label={quoteattr(title)} {size}>'
    return f"{head}{text(8, 18, title, 't')}{''.join(shapes)}</svg>"


def room(words: Iterable[str]) -> float:
    """The width that the longest of some labels takes."""
    return max((len(each) for each in words), default=0) * CHARACTER


def ranges(numbers: Iterable[int]) -> str:
    """Ascending integers in words: ``0-3 8 16-19``."""
    spans: list[list[int]] = []
    for each in numbers:
        if spans and spans[-1][1] == each - 1:
            spans[-1][1] = each
        else:
            spans.append([each, each])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)
