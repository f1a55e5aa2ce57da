"""JSON of a service or of a file: bounded in depth and in the length of its integers, without control characters."""

from __future__ import annotations

import json
from typing import Any

from tirgemm._terminal.plain_text import plain

# Integers of 64 bits have 20 characters at most; Python's own limit is 4300 digits, and float() of one fails.
_MAX_INTEGER_CHARACTERS = 20


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError for what is none, for NaN, and for what is nested too deeply."""
    try:
        return _plain(json.loads(data, parse_int=_integer, parse_constant=_constant))
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def whole_number(text: str) -> int | None:
    """The integer of a header or an event id: ASCII digits, 18 at most; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {plain(name): _plain(item) for name, item in value.items()}
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_INTEGER_CHARACTERS:
        raise ValueError(f"an integer of {len(text)} digits is in the JSON; the limit is {_MAX_INTEGER_CHARACTERS}")
    return int(text)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
