"""``Salvage``: copies every row that can be read from the pages of a damaged SQLite file into a new database, and
counts those that its indexes know of."""

from __future__ import annotations

import sqlite3
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirgemm.tuning_db.table_list import TableList
from tirgemm.tuning_db.upkeep.damaged_pages import DamagedPages, Walk
from tirgemm.tuning_db.upkeep.rebuilt_rows import gemm_rows, put_rows, rebuild_rows

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_KINDS = {"INT": int, "BOO": int, "BIG": int, "VAR": str, "TEX": str, "FLO": (int, float)}
_SEQUENCE = "sqlite_sequence"
# The greatest row number.
_GREATEST = 2**63 - 1

RowValues = tuple[Any, ...]


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


@dataclass(frozen=True, slots=True)
class _TableShape:
    """The columns of a table: what tells its rows from others'."""

    columns: tuple[str, ...]
    kinds: tuple[Any, ...]
    least: int
    """So many columns every row has; those that were added later have the default."""
    defaults: tuple[Any, ...]
    number_at: int | None
    """The column that is the number of the row."""

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: str) -> _TableShape:
        about = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
        keys = [row[0] for row in about if row[5]]
        number_at = keys[0] if len(keys) == 1 and about[keys[0]][2] == "INTEGER" else None
        kinds = tuple(_KINDS.get(row[2][:3], object) for row in about)
        defaults = tuple(connection.execute(f"SELECT {row[4] or 'NULL'}").fetchone()[0] for row in about)
        needed = [row[0] for row in about if row[3] and row[4] is None]
        return cls(tuple(row[1] for row in about), kinds, max(needed, default=0) + 1, defaults, number_at)

    def row(self, number: int, values: list[Any]) -> RowValues | None:
        """The row with its number; None where these values are not those of one."""
        if not self.least <= len(values) <= len(self.columns) or number == _GREATEST:
            return None
        if not all(value is None or isinstance(value, kind) for value, kind in zip(values, self.kinds, strict=False)):
            return None
        row = [*values, *self.defaults[len(values) :]]
        if self.number_at is not None:
            row[self.number_at] = number
        return number, *row


class Salvage:
    """Fills ``fresh``, a new database of that schema, from damaged pages. ``missing`` are the tables that no list of
    tables leads to: nothing can be said of their rows."""

    def __init__(self, pages: DamagedPages, kept: TableList | None, fresh: sqlite3.Connection) -> None:
        self._pages = pages
        self._fresh = fresh
        self._first = self._first_pages(kept)
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        self._shapes = {row[0]: _TableShape.of(fresh, row[0]) for row in fresh.execute(names)}
        self.missing = [name for name in self._shapes if not self._first[name]]
        self._known: dict[str, int | None] = {}

    def fill(self, derived: tuple[str, ...], blobs: Path) -> None:
        """Add all rows but those of the ``derived`` tables, and what of lost ones the rest tells; none refers to one
        that is lost."""
        walks = {name: Walk() for name in self._shapes}
        numbers = dict[str, set[int] | None]()
        for name, walk in walks.items():
            rows = self._rows(name, self._best(name), walk)
            if name in (*derived, "alembic_version"):
                deque(rows, maxlen=0)
            else:
                self._put(name, gemm_rows(rows, self._gemm_texts()) if name == "gemms" else rows)
                numbers[name] = known = self._known_numbers(name)
                self._put(name, self._known_rows(name, walk.astray, known))
                # Or its first page is another's.
                walk.intact = walk.intact and self._number(name) >= len(known or ())
        self._add_orphans(walks, numbers)
        for name, known in numbers.items():
            is_known = known is not None or walks[name].intact
            self._known[name] = max(len(known or ()), self._number(name)) if is_known else None
        rebuild_rows(self._fresh, blobs)
        drop_what_refers_to_nothing(self._fresh)
        self._go_on_counting(numbers)

    def row_counts(self) -> dict[str, tuple[int, int | None]]:
        """Of each table that was filled the number of its rows, and how many there were, by the index that knows of
        most; None where no index is whole and the table is not."""
        return {name: (self._number(name), known) for name, known in self._known.items()}

    def _first_pages(self, kept: TableList | None) -> dict[str, list[int]]:
        """Of each table and index what the list of the file and the one that was kept say; a table's columns have to
        be those of the new database. Where the file's first page is lost nothing tells whether the kept list is its
        own, but that each table begins on a page of one."""
        own = [values for _, values in self._pages.rows(1, Walk())]
        entries = own + (kept.entries if kept is not None else [])
        indexes = {row[0] for row in self._fresh.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        first: dict[str, list[int]] = defaultdict(list)
        with closing(sqlite3.connect(":memory:")) as tried:
            for values in entries:
                if len(values) != 5:
                    continue
                kind, name, table, page, statement = values
                is_ours = (kind, name) == ("table", _SEQUENCE) or (kind == "index" and name in indexes)
                if kind == "table" and name == table and not is_ours:
                    is_ours = _columns_made(tried, name, statement) == _columns(self._fresh, name)
                if not is_ours or not isinstance(page, int) or not 1 < page <= self._pages.number:
                    continue
                if page not in first[name] and (own or kind == "index" or self._pages.is_of_table(page)):
                    first[name].append(page)
        return first

    def _best(self, name: str) -> int:
        """The first page that leads to most rows of a table."""
        pages = self._first[name]
        if len(pages) == 1:
            return pages[0]
        return max(pages, key=lambda page: sum(1 for _ in self._rows(name, page, Walk())))

    def _rows(self, name: str, first: int, walk: Walk) -> Iterator[RowValues]:
        for number, values in self._pages.rows(first, walk):
            row = self._shapes[name].row(number, values)
            if row is None:
                walk.intact = False
            else:
                yield row

    def _known_rows(self, name: str, rows: list[tuple[int, list[Any]]], known: set[int] | None) -> list[RowValues]:
        """Those of the rows that are a table's, as far as its columns and indexes tell."""
        shaped = [self._shapes[name].row(*row) for row in rows]
        return [row for row in shaped if row is not None and (known is None or row[0] in known)]

    def _put(self, name: str, rows: Iterable[RowValues]) -> None:
        put_rows(self._fresh, name, ("rowid", *self._shapes[name].columns), rows)

    def _number(self, name: str) -> int:
        return int(self._fresh.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])

    def _known_numbers(self, name: str) -> set[int] | None:
        """The numbers of a table's rows by the index that knows of most; None where none is whole."""
        best: set[int] | None = None
        for _, index, _, _, partial in self._fresh.execute(f'PRAGMA index_list("{name}")').fetchall():
            kinds = self._index_kinds(name, index)
            for first in self._first[index] if not partial else []:
                walk, numbers = Walk(), set[int]()
                for entry in self._pages.entries(first, walk):
                    if len(entry) == len(kinds) and all(map(_is_of, entry, kinds)):
                        numbers.add(entry[-1])
                    else:
                        walk.intact = False
                if walk.intact and (best is None or len(numbers) > len(best)):
                    best = numbers
        return best

    def _index_kinds(self, name: str, index: str) -> list[Any]:
        shape = self._shapes[name]
        columns = [row[1] for row in self._fresh.execute(f'PRAGMA index_info("{index}")')]
        return [*(shape.kinds[column] if column >= 0 else int for column in columns), int]

    def _gemm_texts(self) -> Iterator[tuple[Any, Any]]:
        """The numbers and texts of problems that the index of their texts knows."""
        for _, index, *_ in self._fresh.execute('PRAGMA index_list("gemms")').fetchall():
            if [row[2] for row in self._fresh.execute(f'PRAGMA index_info("{index}")')] == ["text"]:
                for first in self._first[index]:
                    yield from ((entry[1], entry[0]) for entry in self._pages.entries(first, Walk()) if len(entry) == 2)

    def _add_orphans(self, walks: dict[str, Walk], numbers: dict[str, set[int] | None]) -> None:
        """Add the rows of orphaned leaves, which a damaged page led to: no tree reaches them, they are not free, and
        their rows are one table's alone, as far as their columns and its indexes tell."""
        broken, free = [name for name in numbers if not walks[name].intact], self._pages.free()
        if not broken or free is None:
            return
        reached = free.union(*(walk.pages for walk in walks.values()))
        self._pages_of_others(reached)
        for leaf in self._pages.leaves():
            if leaf in reached:
                continue
            walk = Walk()
            rows = list(self._pages.rows_of(leaf, walk))
            fitting = []
            for name in broken:
                of_table = self._known_rows(name, rows, numbers[name])
                if of_table and len(of_table) == len(rows):
                    fitting.append((name, of_table))
            if len(fitting) == 1:
                self._put(*fitting[0])

    def _pages_of_others(self, reached: set[int]) -> None:
        for first in (1, *self._first[_SEQUENCE]):
            walk = Walk()
            deque(self._pages.rows(first, walk), maxlen=0)
            reached |= walk.pages

    def _go_on_counting(self, numbers: dict[str, set[int] | None]) -> None:
        """Give out no number again that the damaged file has given out."""
        given: dict[str, int] = {}
        for first in self._first[_SEQUENCE]:
            for _, values in self._pages.rows(first, Walk()):
                if len(values) == 2 and isinstance(values[0], str) and isinstance(values[1], int):
                    given[values[0]] = max(given.get(values[0], 0), values[1])
        counted = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
        for (name,) in self._fresh.execute(counted).fetchall():
            (last,) = self._fresh.execute(f'SELECT max(rowid) FROM "{name}"').fetchone()
            last = max(last or 0, given[name] if name in given else max(numbers.get(name) or (), default=0))
            self._fresh.execute(f"DELETE FROM {_SEQUENCE} WHERE name = ?", (name,))
            self._fresh.execute(f"INSERT INTO {_SEQUENCE} (name, seq) VALUES (?, ?)", (name, last))


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


def _is_of(value: Any, kind: Any) -> bool:
    return value is None or isinstance(value, kind)


def _columns(connection: sqlite3.Connection, table: str) -> list[Any]:
    return connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()


def _columns_made(connection: sqlite3.Connection, table: Any, statement: Any) -> list[Any]:
    """The columns of the table that a statement makes; none where it makes none."""
    if not isinstance(statement, str) or not statement.startswith("CREATE TABLE"):
        return []
    try:
        connection.execute(statement)
        made = _columns(connection, table)
        connection.execute(f'DROP TABLE "{table}"')
    except (sqlite3.Error, sqlite3.Warning):
        return []
    return made
