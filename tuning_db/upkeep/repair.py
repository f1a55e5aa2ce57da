"""Repair of a damaged SQLite tuning database that nobody has open.

Where its indexes alone are damaged they are built anew, and nothing is lost. Else every row that can still be read goes
into a new database, whose pages then take the place of the damaged ones in one transaction, under SQLite's exclusive
lock: the file stays the same one for whoever waits to open it. The damaged bytes are kept beside it.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import URL, NullPool, create_engine

from tirgemm._user_folders import DATABASE
from tirgemm.errors import AlreadyRunning, DamagedDatabase, InvalidRequest, StorageFull, StoreError
from tirgemm.tuning_db import schema
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.access.audit import note_command
from tirgemm.tuning_db.answers.kernel_version import raise_version
from tirgemm.tuning_db.database import Database, damage_marker, translated
from tirgemm.tuning_db.models import ApiKeyRow, KernelDocumentRow, KernelFigureRow, KernelVersionRow
from tirgemm.tuning_db.upkeep.first_pages import locked_bytes, make_readable
from tirgemm.tuning_db.upkeep.missing_rows import add_missing_rows
from tirgemm.tuning_db.upkeep.rebuilt_rows import rebuild_rows
from tirgemm.tuning_db.upkeep.repair_files import RepairFiles, created, hindrance
from tirgemm.tuning_db.upkeep.salvage import DamagedTable, columns_of, drop_what_refers_to_nothing, is_damage

# Made of the kernels, all of them anew: a figure that is wrong could not be told from one that is right.
DERIVED = (KernelDocumentRow.__tablename__, KernelFigureRow.__tablename__)
_UNTOLD = ("alembic_version", "sqlite_sequence", KernelVersionRow.__tablename__)
LOST_KEY = "lost in a repair"

logger = logging.getLogger("tirgemm.tuning_db")


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """How many rows of a table came over, and how many did not, by the indexes that could be read; None where none
    could."""

    name: str
    rows: int
    lost: int | None


@dataclass(frozen=True)
class Repaired:
    """What a repair did. Of a database that was whole nothing, and there are no ``tables``; ``damaged_file`` is where
    the bytes lie as they were, its write-ahead log beside it. ``keys_lost``: there were API keys, and none came over;
    a revoked one stands for them, so that nobody is let in without a key."""

    database: Path
    damaged_file: Path | None = None
    tables: tuple[RepairedTable, ...] = ()
    keys_lost: bool = False

    @property
    def lost(self) -> tuple[RepairedTable, ...]:
        """The tables of which rows are lost, or may be."""
        return tuple(table for table in self.tables if table.lost != 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "database": str(self.database),
            "whole": self.damaged_file is None,
            "damaged_file": None if self.damaged_file is None else str(self.damaged_file),
            "tables": {table.name: {"rows": table.rows, "lost": table.lost} for table in self.tables},
            "keys_lost": self.keys_lost,
        }

    def __str__(self) -> str:
        if self.damaged_file is None:
            return f"database {self.database} is whole; nothing was changed"
        lost = ", ".join(
            f"{'an unknown number' if table.lost is None else table.lost} of {table.name} ({table.rows} are there)"
            for table in self.lost
        )
        keys = "; its API keys are lost: nobody is let in before `tirgemm keys create`" if self.keys_lost else ""
        what = f"rows lost: {lost}" if lost else "no row is lost"
        return f"database {self.database} was damaged and is repaired, {what}{keys}; as it was: {self.damaged_file}"


def repair(file: Path, data_dir: Path, wait_s: float = 0.0) -> Repaired:
    """Make a SQLite database whole whose blobs are in ``data_dir``, and note it in its audit log.

    Raises AlreadyRunning where anybody still has it open after ``wait_s``, DamagedDatabase where SQLite can read
    nothing of it, SchemaTooNew, InvalidRequest for what is no tuning database, and StoreError; the file is
    then as it was, or its bytes lie beside it.
    """
    if not file.is_file():
        raise InvalidRequest(f"there is no database file {file}")
    marker, file = damage_marker(file), file.resolve()
    if words := hindrance(file):
        raise StoreError(f"database {file} was not repaired: {words}; it is as it was")
    files = RepairFiles(file)
    try:
        with translated(str(file)), ExitStack() as stack:
            # The content is opened behind the lock and closed behind the connection: a process that closes a file gives
            # up all locks that it has on it.
            try:
                damaged = _locked(file, wait_s)
            except DamagedDatabase as error:
                content = stack.enter_context(locked_bytes(file))
                stack.enter_context(files)
                files.put_log_back(content)
                rows = _with_new_first_pages(files, content, error)
                files.begin_to_write()
                files.put_in_place()
                done = Repaired(file, files.done(), rows)
            else:
                content = stack.enter_context(file.open("rb"))
                stack.enter_context(closing(damaged))
                stack.enter_context(files)
                done = _repair(damaged, files, content, data_dir)
            marker.unlink(missing_ok=True)
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        kept = f"as it was before: {files.unfinished}" if files.unfinished.is_file() else "it is as it was"
        raise kind(f"database {file} was not repaired: {error.strerror}; {kept}") from error
    if done.damaged_file is not None:
        with Database(_url(file), data_dir) as database:
            note_command(database, "db repair", str(done))
    return done


def repair_if_found_damaged(data_dir: Path, wait_s: float = 0.0) -> Repaired | None:
    """``repair`` the database of a data folder where it was met with damage, since it was last whole; None where not.

    What was lost is logged. Raises what ``repair`` does.
    """
    file = data_dir / DATABASE
    if not damage_marker(file).is_file():
        return None
    if not file.is_file():
        damage_marker(file).unlink(missing_ok=True)
        return None
    logger.warning("database %s was found to be damaged; it is being repaired", file)
    done = repair(file, data_dir, wait_s)
    logger.log(logging.ERROR if done.lost else logging.WARNING, "%s", done)
    return done


def _locked(file: Path, wait_s: float) -> sqlite3.Connection:
    """A connection that alone has the file, until it is closed. One that is shorter than it says is opened, too."""
    uri = f"{file.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
    try:
        for statement in ("PRAGMA writable_schema = ON", "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
            connection.execute(statement)
        connection.execute("ROLLBACK")  # a COMMIT would correct the header of a file that was cut off
    except sqlite3.Error as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise AlreadyRunning(
                f"database {file} is open in another process; stop what uses it, then repair it"
            ) from error
        if is_damage(error):
            raise _unreadable(file, error) from error
        raise
    return connection


def _unreadable(file: Path, why: object) -> DamagedDatabase:
    words = f"nothing of database {file} can be read ({why})"
    return DamagedDatabase(f"{words}; put a backup back, or move the file away to start afresh")


def _repair(damaged: sqlite3.Connection, files: RepairFiles, content: BinaryIO, data_dir: Path) -> Repaired:
    """Repair what SQLite can open; where nothing can be read of it, by its first pages."""
    keys_lost = False
    try:
        revision, names = _contents(damaged, files.file)
        if _is_whole(damaged):
            files.done()  # of a repair that was killed at its very end
            return Repaired(files.file)
        files.keep(content)
        tables = {name: DamagedTable(damaged, name) for name in sorted(names) if not name.startswith("sqlite_")}
        rows = _with_new_indexes(damaged, files.work, tables)
        if rows is None:
            rows = _salvaged(damaged, files, tables, revision, data_dir)
            keys_lost = any(each.name == ApiKeyRow.__tablename__ and not each.rows and each.lost != 0 for each in rows)
            _complete(files.work, data_dir, keys_lost=keys_lost)
    except DamagedDatabase as error:
        files.drop()
        rows = _with_new_first_pages(files, content, error)
    files.begin_to_write()
    with closing(sqlite3.connect(files.work)) as whole:
        whole.backup(damaged)
    return Repaired(files.file, files.done(), rows, keys_lost)


def _contents(damaged: sqlite3.Connection, file: Path) -> tuple[str | None, set[str]]:
    """The version of the schema, None where that is lost, and the names of the tables."""
    try:
        names = {row[0] for row in damaged.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise _unreadable(file, error) from error
    if not names & {"alembic_version", "candidates"}:
        if _is_whole(damaged):
            raise InvalidRequest(f"{file} is no tuning database: it has no version of a schema")
        raise _unreadable(file, "its list of tables is lost")
    revision = _revision(damaged, names)
    if revision is not None:
        schema.require_known(revision, str(file))
    return revision, names


def _with_new_first_pages(files: RepairFiles, content: BinaryIO, why: DamagedDatabase) -> tuple[RepairedTable, ...]:
    """Make a file that cannot be read whole by its first pages, where those alone are damaged; else raise ``why``."""
    files.copy_log(files.keep(content))
    if not make_readable(content, files.work):
        raise why
    with closing(sqlite3.connect(files.work)) as whole:
        names = [row[0] for row in whole.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return tuple(RepairedTable(name, _rows(whole, name), 0) for name in names if name not in _UNTOLD)


def _is_whole(connection: sqlite3.Connection) -> bool:
    try:
        return connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    except sqlite3.Error as error:
        if is_damage(error):
            return False
        raise


def _revision(damaged: sqlite3.Connection, names: set[str]) -> str | None:
    """The version of the schema, None where that is lost."""
    with suppress(sqlite3.DatabaseError):
        if "alembic_version" in names:
            row = damaged.execute("SELECT version_num FROM alembic_version NOT INDEXED").fetchone()
            return row[0] if row is not None and isinstance(row[0], str) else None
    return None


def _with_new_indexes(
    damaged: sqlite3.Connection, work: Path, tables: dict[str, DamagedTable]
) -> tuple[RepairedTable, ...] | None:
    """A copy of the file at ``work`` with its indexes built anew, and what is in it; None where that does not make it
    whole, or where an index knew of more rows than the tables have."""
    with created(work):
        pass
    with closing(sqlite3.connect(work, isolation_level=None)) as copy:
        damaged.backup(copy)
        try:
            copy.execute("REINDEX")
            if not _is_whole(copy):
                copy.execute("VACUUM")  # the list of free pages, too
                if not _is_whole(copy):
                    return None
        except sqlite3.Error as error:
            if is_damage(error) or isinstance(error, sqlite3.IntegrityError):
                return None
            raise
        rows = tuple(RepairedTable(name, _rows(copy, name), 0) for name in tables if name not in _UNTOLD)
    return rows if all(each.rows >= (tables[each.name].known or 0) for each in rows) else None


def _salvaged(
    damaged: sqlite3.Connection,
    files: RepairFiles,
    tables: dict[str, DamagedTable],
    revision: str | None,
    data_dir: Path,
) -> tuple[RepairedTable, ...]:
    """A new database to work on with every row that can be read; none of the rows refers to one that is lost."""
    work = files.work
    files.drop_work()
    with created(work):
        pass
    with closing(sqlite3.connect(work)) as fresh:
        (size,) = damaged.execute("PRAGMA page_size").fetchone()
        fresh.execute(f"PRAGMA page_size = {size}")
        fresh.execute("VACUUM")
    engine = create_engine(_url(work), poolclass=NullPool)
    with engine.begin() as connection:
        schema.create(connection, revision or schema.HEAD)
    with closing(sqlite3.connect(work, isolation_level=None)) as fresh:
        fresh.execute("PRAGMA synchronous = OFF")
        fresh.execute("BEGIN")
        wanted = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        names = [row[0] for row in fresh.execute(wanted) if row[0] not in ("alembic_version", *DERIVED)]
        for name in names:
            columns = columns_of(fresh, name)
            table = tables.get(name)
            if table is None:
                continue
            if columns_of(damaged, name) != columns:
                raise _unreadable(files.file, f"its table {name} is not that of schema {revision or schema.HEAD}")
            put = f'INSERT OR IGNORE INTO "{name}" ({", ".join(columns)}) VALUES ({", ".join("?" * len(columns))})'
            fresh.executemany(put, table.rows(columns))
        rebuild_rows(damaged, fresh, data_dir / "blobs")
        drop_what_refers_to_nothing(fresh)
        _go_on_counting(damaged, fresh, tables)
        fresh.execute("COMMIT")
        rows = {name: _rows(fresh, name) for name in names if name not in _UNTOLD}
    return tuple(RepairedTable(name, number, _lost(tables.get(name), number)) for name, number in rows.items())


def _go_on_counting(damaged: sqlite3.Connection, fresh: sqlite3.Connection, tables: dict[str, DamagedTable]) -> None:
    """Give out no number again that the damaged file has given out."""
    given = {name: table.last or 0 for name, table in tables.items()}
    for name, last in DamagedTable(damaged, "sqlite_sequence").rows(("name", "seq")):
        given[name] = max(given.get(name, 0), last)
    counted = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
    for (name,) in fresh.execute(counted).fetchall():
        known = fresh.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (name,)).fetchone() or (0,)
        fresh.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
        values = name, max(known[0], given.get(name, 0))
        fresh.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", values)


def _complete(work: Path, data_dir: Path, *, keys_lost: bool) -> None:
    """Bring the new database to this tirgemm's schema, and make what is made of its rows."""
    with Database(_url(work), data_dir) as database:
        add_missing_rows(database)
        with database.write() as connection:
            raise_version(database, connection)
        if keys_lost:
            keys = KeyTable(database)
            keys.revoke(keys.create(LOST_KEY, "read")[0].id)


def _lost(table: DamagedTable | None, rows: int) -> int | None:
    if table is None or (table.known is None and not table.intact):
        return None
    return max((table.known or 0) - rows, 0)


def _rows(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])


def _url(file: Path) -> str:
    return URL.create("sqlite", database=str(file.absolute())).render_as_string()
