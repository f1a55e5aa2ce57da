"""Repair of a damaged SQLite tuning database that nobody has open.

Every row that can still be read goes into a new database, whose pages then take the place of the damaged ones in one
transaction, under SQLite's exclusive lock: the file stays the same one for whoever waits to open it. The damaged bytes
are kept beside it.
"""

from __future__ import annotations

import errno
import logging
import mmap
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
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
from tirgemm.tuning_db.table_list import TableList, kept_table_list, table_list_file
from tirgemm.tuning_db.upkeep.damaged_pages import DamagedPages, Walk
from tirgemm.tuning_db.upkeep.first_page import PAGE_SIZE, locked_bytes, write_first_page
from tirgemm.tuning_db.upkeep.missing_rows import add_missing_rows
from tirgemm.tuning_db.upkeep.repair_files import RepairFiles, created, repair_due, repair_obstacle
from tirgemm.tuning_db.upkeep.salvage import Salvage, is_damage

# Made of the kernels, all of them anew: a figure that is wrong could not be told from one that is right.
DERIVED = (KernelDocumentRow.__tablename__, KernelFigureRow.__tablename__)
_UNCOUNTED = ("alembic_version", KernelVersionRow.__tablename__)
LOST_KEY = "lost in a repair"

logger = logging.getLogger("tirgemm.tuning_db")

TellRepaired = Callable[["Repaired"], None]


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


def repair(file: Path, data_dir: Path, wait_s: float = 0.0, tell: TellRepaired = lambda _: None) -> Repaired:
    """Make a SQLite database whole whose blobs are in ``data_dir``, and note it in its audit log. ``tell`` is called
    with what is done before it is written.

    Raises AlreadyRunning where anybody still has it open after ``wait_s``, DamagedDatabase where SQLite can read
    nothing of it, SchemaTooNew, InvalidRequest for what is no tuning database, and StoreError; the file is
    then as it was, or its bytes lie beside it.
    """
    if not file.is_file():
        raise InvalidRequest(f"there is no database file {file}")
    marker, beside, file = damage_marker(file), file, file.resolve()
    if words := repair_obstacle(file):
        raise StoreError(f"database {file} was not repaired: {words}; it is as it was")
    files = RepairFiles(file)
    try:
        with translated(str(file)), ExitStack() as stack:
            # The content is opened behind the lock and closed behind the connection: a process that closes a file gives
            # up all locks that it has on it.
            damaged = _locked(file, wait_s) if _has_first_page(file) else None
            if damaged is None:
                content = stack.enter_context(locked_bytes(file, wait_s))
            else:
                content = stack.enter_context(file.open("rb"))
                stack.enter_context(closing(damaged))
            stack.enter_context(files)
            done = _make_whole(damaged, files, content, kept_table_list(beside), data_dir)
            if done.damaged_file is not None:
                tell(done)
                _write(damaged, files)
                table_list_file(beside).unlink(missing_ok=True)  # it is that of the damaged file
            elif files.done() is not None:  # a repair that was killed at its very end
                logger.warning("database %s was repaired before; its audit log says what was lost", file)
            marker.unlink(missing_ok=True)
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        kept = f"as it was before: {files.unfinished}" if files.unfinished.is_file() else "it is as it was"
        raise kind(f"database {file} was not repaired: {error.strerror}; {kept}") from error
    return done


def repair_if_found_damaged(data_dir: Path, wait_s: float = 0.0) -> Repaired | None:
    """``repair`` the database of a data folder where it was met with damage, since it was last whole; None where not.

    Workers that have it open end meanwhile. What was lost is logged. Raises what ``repair`` does.
    """
    file = data_dir / DATABASE
    if not damage_marker(file).is_file():
        return None
    if not file.is_file():
        damage_marker(file).unlink(missing_ok=True)
        return None
    logger.warning("database %s was found to be damaged; it is being repaired", file)
    with repair_due(damage_marker(file)):
        done = repair(file, data_dir, wait_s, _log)
    if done.damaged_file is None:
        _log(done)
    return done


def _log(done: Repaired) -> None:
    logger.log(logging.ERROR if done.lost else logging.WARNING, "%s", done)


def _has_first_page(file: Path) -> bool:
    """Whether SQLite can open it. It looks at no log, which it would write back and delete when it closes the file."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as connection:
        try:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("PRAGMA schema_version")
        except sqlite3.Error as error:
            if is_damage(error):
                return False
            raise
    return True


def _locked(file: Path, wait_s: float) -> sqlite3.Connection | None:
    """A connection that alone has the file, until it is closed; None where SQLite can read nothing of it. One that is
    shorter than it says is opened, too."""
    uri = f"{file.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
    try:
        for statement in ("PRAGMA writable_schema = ON", "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
            connection.execute(statement)
        connection.execute("ROLLBACK")  # a COMMIT would correct the header of a file that was cut off
    except sqlite3.Error as error:
        connection.close()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            raise AlreadyRunning(
                f"database {file} is open in another process; stop what uses it, then repair it"
            ) from error
        if is_damage(error) or code == sqlite3.SQLITE_READONLY:  # by the file's header: it may be written
            return None
        raise
    return connection


def _make_whole(
    damaged: sqlite3.Connection | None, files: RepairFiles, content: BinaryIO, kept: TableList | None, data_dir: Path
) -> Repaired:
    """Make ``files.work`` of a damaged database; what that does, once it is written."""
    if damaged is None:
        files.put_log_back(content)
    files.keep(content)
    _copy_pages(damaged, files, content, kept)
    if damaged is not None:
        (changes,) = damaged.execute("PRAGMA schema_version").fetchone()
        if kept is not None and kept.changes != changes:
            kept = None  # another program changed the tables since
    if damaged is not None and _is_whole(files, kept):
        return Repaired(files.file)
    rows = _salvaged(files, kept, data_dir)
    files.pages.unlink()
    keys_lost = any(each.name == ApiKeyRow.__tablename__ and not each.rows and each.lost != 0 for each in rows)
    done = Repaired(files.file, files.name_for_good(), rows, keys_lost)
    _complete(files.work, data_dir, done)
    return done


def _write(damaged: sqlite3.Connection | None, files: RepairFiles) -> None:
    files.begin_to_write()
    with closing(sqlite3.connect(files.work)) as whole:
        if damaged is None:
            whole.execute("PRAGMA journal_mode = WAL")
        else:
            whole.backup(damaged)
    if damaged is None:
        files.put_in_place()
    files.done()


def _copy_pages(
    damaged: sqlite3.Connection | None, files: RepairFiles, content: BinaryIO, kept: TableList | None
) -> None:
    """Copy the pages to ``files.pages``, those that are in the log as they are there."""
    with created(files.pages):
        pass
    with closing(sqlite3.connect(files.pages)) as copy:
        if damaged is not None:
            damaged.backup(copy)
            return
        with created(files.work) as readable:
            content.seek(0)
            shutil.copyfileobj(content, readable, 1 << 20)
            write_first_page(readable, PAGE_SIZE if kept is None else kept.page_size)
        files.copy_log()
        with closing(sqlite3.connect(files.work)) as source:
            source.backup(copy)
    files.drop_work()


def _is_whole(files: RepairFiles, kept: TableList | None) -> bool:
    """Whether SQLite finds no fault in the pages, and the list of tables is what it was."""
    with closing(sqlite3.connect(files.pages)) as connection:
        try:
            if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                return False
            if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
                return False
            now = TableList.of(connection)
        except (sqlite3.OperationalError, UnicodeDecodeError):  # of a column that is called otherwise now
            return False
        except sqlite3.Error as error:
            if is_damage(error):
                return False
            raise
    if now.revision is None and "candidates" not in [entry[1] for entry in now.entries]:
        raise InvalidRequest(f"{files.file} is no tuning database: it has no version of a schema")
    if kept is not None and kept.entries != now.entries:
        return False
    if now.revision is not None:
        schema.require_known(now.revision, str(files.file))
    return True


def _salvaged(files: RepairFiles, kept: TableList | None, data_dir: Path) -> tuple[RepairedTable, ...]:
    """A new database to work on with every row that can be read."""
    work = files.work
    with created(work):
        pass
    with ExitStack() as stack:
        file = stack.enter_context(files.pages.open("rb"))
        content = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        size = int.from_bytes(content[16:18], "big")
        pages = DamagedPages(content, 65536 if size == 1 else size)
        revision = _revision(pages, kept, files.file)
        with closing(sqlite3.connect(work)) as fresh:
            fresh.execute(f"PRAGMA page_size = {65536 if size == 1 else size}")
            fresh.execute("VACUUM")
        with create_engine(_url(work), poolclass=NullPool).begin() as connection:
            schema.migrate(connection, revision)
        fresh = stack.enter_context(closing(sqlite3.connect(work, isolation_level=None)))
        fresh.execute("PRAGMA synchronous = OFF")
        fresh.execute("BEGIN")
        salvage = Salvage(pages, kept, fresh)
        if salvage.missing:
            words = f"where its tables are is lost: {', '.join(salvage.missing)}"
            raise DamagedDatabase(
                f"nothing of database {files.file} can be read ({words}); put a backup back, or move the file away to "
                "start afresh"
            )
        salvage.fill(DERIVED, data_dir / "blobs")
        fresh.execute("COMMIT")
        return tuple(
            RepairedTable(name, rows, None if known is None else max(known - rows, 0))
            for name, (rows, known) in sorted(salvage.row_counts().items())
            if name not in _UNCOUNTED
        )


def _revision(pages: DamagedPages, kept: TableList | None, file: Path) -> str:
    """The version of the schema. SchemaTooNew for one that is not known here."""
    lists = [values for _, values in pages.rows(1, Walk())], [] if kept is None else kept.entries
    firsts = [entry[3] for entry in chain(*lists) if len(entry) == 5 and entry[1] == "alembic_version"]
    values = [values for first in firsts if isinstance(first, int) for _, values in pages.rows(first, Walk())]
    named = [value[0] for value in values if len(value) == 1 and isinstance(value[0], str)]
    if kept is not None and kept.revision is not None:
        named.append(kept.revision)
    known = [revision for revision in named if revision in schema.KNOWN]
    if named and not known:
        schema.require_known(named[0], str(file))
    return known[0] if known else schema.HEAD


def _complete(work: Path, data_dir: Path, done: Repaired) -> None:
    """Bring the new database to this tirgemm's schema, make what is made of its rows, and note what was done."""
    with Database(_url(work), data_dir) as database:
        add_missing_rows(database)
        with database.write() as connection:
            raise_version(database, connection)
        if done.keys_lost:
            keys = KeyTable(database)
            keys.revoke(keys.create(LOST_KEY, "read")[0].id)
        note_command(database, "db repair", str(done))


def _url(file: Path) -> str:
    return URL.create("sqlite", database=str(file.absolute())).render_as_string()
