"""``TableList``: the list of tables of a data folder's SQLite database, kept beside it. A repair finds the rows by it
where the list in the database is damaged, and sees by it that it is."""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tirgemm.artifact.regular_file import write_whole

_PAGE_SIZES = [512 << number for number in range(8)]


@dataclass(frozen=True, slots=True)
class TableList:
    """``entries`` are the rows of ``sqlite_schema``: type, name, table, first page, statement. SQLite counts
    ``changes`` of them, those by VACUUM too."""

    page_size: int
    changes: int
    revision: str | None
    entries: list[list[Any]]

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> TableList:
        texts = ", ".join(f"CAST({name} AS BLOB)" for name in ("type", "name", "tbl_name", "sql"))
        rows, revision = [], None
        connection.execute("BEGIN")  # another process may be changing the tables
        try:
            size, changes = connection.execute(
                "SELECT page_size, schema_version FROM pragma_page_size, pragma_schema_version"
            ).fetchone()
            for page, *values in connection.execute(f"SELECT rootpage, {texts} FROM sqlite_master ORDER BY rowid"):
                # Of a damaged list they need be no UTF-8.
                kind, name, table, sql = (value and value.decode("utf-8", "backslashreplace") for value in values)
                rows.append([kind, name, table, page, sql])
            if any(name == "alembic_version" for _, name, *_ in rows):
                (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or (None,)
        finally:
            connection.rollback()  # nothing where an error has ended it
        return cls(size, changes, revision, rows)


def table_list_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.tables")


def kept_table_list(file: Path) -> TableList | None:
    """The list that was kept beside a database; None where there is none that can be read."""
    try:
        values = json.loads(table_list_file(file).read_text(encoding="utf-8"))
        kept = TableList(**values)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    entries = kept.entries
    is_list = isinstance(entries, list) and all(isinstance(row, list) and len(row) == 5 for row in entries)
    return kept if is_list and kept.page_size in _PAGE_SIZES else None


def keep_table_list(connection: sqlite3.Connection, file: Path) -> bool:
    """Keep the list of tables beside a database, where it can be written; whether it is right. It is not where it
    became another one with no change that SQLite counted, but for that of a whole file whose tables are elsewhere:
    that is another one, such as a backup."""
    now, before = TableList.of(connection), kept_table_list(file)
    if now == before:
        return True
    if before is not None and before.changes == now.changes and before.entries != now.entries:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok" or [entry[3] for entry in before.entries] == [entry[3] for entry in now.entries]:
            return False
    with suppress(OSError):
        write_whole(table_list_file(file), json.dumps(asdict(now)).encode())
    return True
