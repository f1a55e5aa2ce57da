"""Text without control characters: what came from elsewhere must not steer the terminal that shows it."""

from __future__ import annotations

import re

# C0 but tab and newline, DEL, C1, and the characters that reorder a line (Unicode's bidirectional controls).
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """``text`` with a replacement character for every control character but tab and newline."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
