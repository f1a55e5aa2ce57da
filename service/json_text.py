"""Figures of JSON texts that a parser gives up: how deep they are nested, and how long their integers are."""

from __future__ import annotations

import json
import re
from itertools import accumulate

# Of a string that does not end all that is left: a text that is no JSON takes no longer than one that is.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NUMBER = re.compile(r"([0-9]+)([.eE][0-9.eE+-]+)?")


def nesting(data: bytes) -> int:
    """How many arrays and objects lie within one another where a JSON text is nested deepest."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[][{}]", _without_strings(data)))
    return max(accumulate(steps), default=0)


def longest_integer(data: bytes) -> int:
    """How many digits the longest integer of a JSON text has."""
    numbers = _NUMBER.findall(_without_strings(data))
    return max((len(digits) for digits, rest in numbers if not rest), default=0)


def _without_strings(data: bytes) -> str:
    return _STRING.sub("", data.decode(json.detect_encoding(data), "replace"))
