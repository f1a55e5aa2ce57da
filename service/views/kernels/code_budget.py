"""Division of a page's bytes among several texts: short texts are whole, long ones are cut at equal shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

from markupsafe import escape

from tirgemm.service.views.kernels.code_lines import CodeText

# What the page has around a line at most: its number twice or four times, its colour, its link; in JSON less.
_AROUND, _AROUND_LINKED = 44, 108


def line_bytes(text: str, *, linked: bool) -> int:
    """The bytes of a line in the page and in its JSON, whichever are more, at most."""
    html, document = len(str(escape(text)).encode()), len(json.dumps(text, ensure_ascii=False).encode())
    return max(html, document) + (_AROUND_LINKED if linked else _AROUND)


def lines_that_fit(texts: Sequence[CodeText], budget: int) -> list[int]:
    """How many lines of each text are shown within ``budget`` bytes in all. Each text has an equal share; what one of
    them does not need is the others'."""
    ends = [
        list(accumulate(line_bytes(line.text, linked=line.source is not None) for line in text.lines)) for text in texts
    ]
    shown = [0] * len(texts)
    left = budget
    by_size = sorted(range(len(texts)), key=lambda at: ends[at][-1] if ends[at] else 0)
    for waiting, at in zip(range(len(texts), 0, -1), by_size, strict=True):
        share = left // waiting
        shown[at] = sum(end <= share for end in ends[at])
        left -= ends[at][shown[at] - 1] if shown[at] else 0
    return shown
