"""Sentences on values that pydantic refuses: which, what it is, and what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def refusal(name: str, error: Mapping[str, Any]) -> str:
    """What is wrong with the value of ``name`` by one of a ``ValidationError``'s errors: ``port is 99999; it should be
    less than or equal to 65535``. Whole objects are not repeated."""
    words, value = str(error["msg"]), error.get("input")
    if error["type"] in ("missing", "extra_forbidden") or isinstance(value, dict | list | tuple):
        return f"{name}: {words}"
    if words.startswith("Input "):
        return f"{name} is {value!r:.80}; it {words.removeprefix('Input ')}"
    return f"{name} is {value!r:.80}: {words}"
