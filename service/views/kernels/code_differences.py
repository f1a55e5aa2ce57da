"""Figures and counts of several kernels' machine code in rows, those that differ first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CountRow:
    """One figure of the machine code of each kernel, None where it is not known. ``differs``: those that are known are
    not all the same; None where it is known of one kernel alone."""

    name: str
    values: tuple[int | None, ...]
    differs: bool | None


def count_rows(columns: Sequence[Mapping[str, int]], *, absent: int | None = 0) -> tuple[CountRow, ...]:
    """A row for each name of any column. Of what a column does not name its kernel has ``absent``, where None is not
    known; one that names nothing is of a kernel whose code nobody could read."""
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        values = tuple(column.get(name, absent) if column else None for column in columns)
        known = [value for value in values if value is not None]
        rows.append(CountRow(name, values, len(set(known)) > 1 if len(known) > 1 else None))
    return tuple(sorted(rows, key=lambda row: not row.differs))
