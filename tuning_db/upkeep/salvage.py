"""What a damaged SQLite file still holds: every row of a table that SQLite can read, and how many its indexes know."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG)
_NUMBERS = -(2**63), 2**63 - 1
# Where nothing tells how far the row numbers of a table go, so many are tried behind the last one that was met.
_TRIED = 1 << 14
# So many spans of row numbers are tried of a table, the widest first: its last page has no end that could be read.
_SPANS = 1 << 20


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file is damaged; of a text that is no UTF-8 it has no code."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in _DAMAGE


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """The columns of a table; none where there is no such table."""
    return tuple(row[1] for row in connection.execute(f'PRAGMA table_info("{table}")'))


class DamagedTable:
    """A table of a damaged file. ``known`` is the number of its rows by the index that knows of most, None where no
    index can be read, and ``last`` the largest of their numbers, or the last that was given out. ``intact`` turns false
    once ``rows`` could not read all that is there."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self.name = name
        self.intact = True
        self.known: int | None = None
        self.last: int | None = None
        self._ended = True
        for index in self._indexes():
            self._count(f'SELECT total(1), max(rowid) FROM "{name}" INDEXED BY "{index}"')
        if self.last is None:
            self.last = self._given_out()

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """These columns of each row that can be read: up to the first damaged page, down to the last one, and what is
        between them by halves, so that a page costs only the rows that lie beneath it."""
        names = "".join(f', "{column}"' for column in columns)
        wanted = f'SELECT rowid{names} FROM "{self.name}" NOT INDEXED WHERE rowid > ? AND rowid < ? ORDER BY rowid'
        spans, tried = deque([_NUMBERS]), 0
        while spans and tried < _SPANS:
            tried += 1
            low, high = spans.popleft()
            for order, inner in (("ASC", max), ("DESC", min)):
                for row in self._read(f"{wanted} {order}", (low, high)):
                    low, high = (inner(low, row[0]), high) if order == "ASC" else (low, inner(high, row[0]))
                    yield row[1:]
                if self._ended:
                    break
            else:
                self.intact = False
                low, high = self._within_bounds(low, high)
                if high - low > 2:
                    middle = (low + high + 1) // 2
                    spans += [(low, middle), (middle - 1, high)]

    def _read(self, statement: str, values: tuple[int, int]) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement up to the first that cannot be read."""
        self._ended = False
        try:
            yield from self._connection.execute(statement, values)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
        else:
            self._ended = True

    def _within_bounds(self, low: int, high: int) -> tuple[int, int]:
        """The row numbers that may exist: at either end of a table that is damaged there they would have no end."""
        low = max(low, 0)
        if self.last is None:
            self.last = self._met(low) + _TRIED
        return low, min(high, self.last + 1)

    def _met(self, number: int) -> int:
        """The largest row number that is met by steps which double."""
        step = 1
        while number + step < _NUMBERS[1]:
            wanted = f'SELECT rowid FROM "{self.name}" NOT INDEXED WHERE rowid > ? AND rowid < ? ORDER BY rowid LIMIT 1'
            rows = list(self._read(wanted, (number + step, _NUMBERS[1])))
            number, step = (rows[0][0], 1) if rows else (number, 2 * step)
        return number

    def _given_out(self) -> int | None:
        """The last row number that was given out, where that is counted and can be read."""
        try:
            given = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (self.name,)).fetchone()
        except sqlite3.Error:  # there may be no such table
            return None
        return given[0] if given is not None and isinstance(given[0], int) else None

    def _indexes(self) -> list[str]:
        return [row[1] for row in self._connection.execute(f'PRAGMA index_list("{self.name}")')]

    def _count(self, counting: str) -> None:
        try:
            number, last = self._connection.execute(counting).fetchone()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            return
        self.known = max(self.known or 0, int(number))
        self.last = max(self.last or 0, last or 0)


def drop_what_refers_to_nothing(connection: sqlite3.Connection) -> None:
    """Do for each row that refers to a missing one what the deletion of that one does: forget it where the row can be
    without, else delete the row, too."""
    while broken := connection.execute("PRAGMA foreign_key_check").fetchall():
        for table, row, _parent, number in broken:
            keys = connection.execute(f'PRAGMA foreign_key_list("{table}")').fetchall()
            column = next(key[3] for key in keys if key[0] == number)
            needed = {row[1]: row[3] for row in connection.execute(f'PRAGMA table_info("{table}")')}[column]
            change = f'DELETE FROM "{table}"' if needed else f'UPDATE "{table}" SET "{column}" = NULL'
            connection.execute(f"{change} WHERE rowid = ?", (row,))
