"""Limits of a number in words, for the sentence that refuses a value."""

from __future__ import annotations

# What pydantic says, as the type of an error, of a value that is no number, not a whole one or out of its limits.
NUMBER_FAULTS = frozenset(
    {
        "int_parsing",
        "int_parsing_size",
        "int_from_float",
        "float_parsing",
        "finite_number",
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
    }
)


def number_limits(low: float | None, high: float | None) -> str:
    """The limits, both within, to be said behind what a number must be; empty where it has none."""
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else ""
