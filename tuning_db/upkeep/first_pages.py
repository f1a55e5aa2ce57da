"""The pages that SQLite needs to read anything at all, the first one and the list of tables, from a new database.

They depend on the schema alone, and on how the file came to have it: one that was made with today's schema has those of
any other such file. Whether they are right the rest of the file proves: its integrity check finds nothing.
"""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import URL, NullPool, create_engine

from tirgemm.errors import AlreadyRunning
from tirgemm.tuning_db import schema
from tirgemm.tuning_db.upkeep.repair_files import created
from tirgemm.tuning_db.upkeep.salvage import is_damage

# The bytes of a file that SQLite locks (its file ``os.h``): PENDING_BYTE, and behind it those of writers and readers.
_LOCKED_FROM, _LOCKED_BYTES = 0x40000000, 512
# Of the header, by the file format: versions for writing and reading (2: with a write-ahead log), the number of changes
# and of pages, the free pages, and the number of changes for which that of pages holds.
_VERSIONS, _CHANGES, _PAGES, _FREE, _PAGES_HOLD = (
    slice(18, 20),
    slice(24, 28),
    slice(28, 32),
    slice(32, 40),
    slice(92, 96),
)


@contextmanager
def locked_bytes(file: Path) -> Iterator[BinaryIO]:
    """A file that SQLite cannot open, locked as SQLite does. AlreadyRunning where another process has it open."""
    with file.open("r+b") as content:
        try:
            fcntl.lockf(content, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM)
        except OSError as error:
            raise AlreadyRunning(f"database {file} is open in another process; stop what uses it first") from error
        yield content


def make_readable(content: BinaryIO, work: Path) -> bool:
    """Copy a file to ``work`` with a new database's first page and list of tables; whether it is whole with them. Its
    write-ahead log, if it needs one, lies beside ``work`` already."""
    fresh = work.with_name(f"{work.name}.new")
    try:
        with created(fresh):
            pass
        engine = create_engine(URL.create("sqlite", database=str(fresh)), poolclass=NullPool)
        with engine.begin() as connection:
            schema.create(connection, schema.HEAD)
        with closing(sqlite3.connect(fresh)) as new:
            (size,) = new.execute("PRAGMA page_size").fetchone()
            try:
                numbers = [row[0] for row in new.execute("SELECT pageno FROM dbstat WHERE name = 'sqlite_schema'")]
            except sqlite3.OperationalError:  # not every SQLite is built with this table
                return False
        pages = fresh.read_bytes()
    finally:
        fresh.unlink(missing_ok=True)
    content.seek(0)
    with created(work) as copy:
        shutil.copyfileobj(content, copy, 1 << 20)
        length = copy.tell()
        for number in numbers:
            page = bytearray(pages[(number - 1) * size : number * size])
            if number == 1:
                page[_VERSIONS], page[_FREE] = b"\2\2", bytes(8)
                page[_CHANGES] = page[_PAGES_HOLD] = b"\0\0\0\1"
                page[_PAGES] = (length // size).to_bytes(4, "big")
            copy.seek((number - 1) * size)
            copy.write(page)
    return _is_whole(work)


def _is_whole(work: Path) -> bool:
    """Whether SQLite finds nothing but pages that no list of free pages names, which are then given back."""
    with closing(sqlite3.connect(work, isolation_level=None)) as copy:
        try:
            said = [str(row[0]) for row in copy.execute("PRAGMA integrity_check(1000000)")]
            lines = [line for text in said for line in text.splitlines() if line != "ok"]
            if not all("never used" in line or line.startswith("***") for line in lines):
                return False
            copy.execute("VACUUM")
            version = copy.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.Error as error:
            if is_damage(error):
                return False
            raise
    return bool(version == (schema.HEAD,))
