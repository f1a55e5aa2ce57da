"""A data folder whose database is damaged, for the tests of its repair."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.contract.storage.databases import DEVICE, GEMM, candidate, config, damage_page
from tirgemm._user_folders import DATABASE
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.upkeep.admin import check
from tirgemm.tuning_db.upkeep.repair import Repaired

CANDIDATES = 120
PAGE = 4096


def damage(folder: Path, content: str) -> None:
    """Overwrite the one page of the file that holds this text, of which there is one."""
    file = folder / DATABASE
    data = bytearray(file.read_bytes())
    assert data.count(content.encode()) == 1
    start = data.index(content.encode()) // PAGE * PAGE
    data[start : start + PAGE] = b"\xff" * PAGE
    file.write_bytes(data)


def damage_root(folder: Path, name: str) -> None:
    """Overwrite the first page of a table or an index."""
    with Database.embedded(folder) as database:
        damage_page(database, name)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def rows(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(folder / DATABASE, timeout=0)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def lost(done: Repaired) -> dict[str, int | None]:
    return {table.name: table.lost for table in done.lost}


def require_whole(folder: Path) -> None:
    """The database is whole, can be written, and answers with the newer kernel, which is listed."""
    with Database.embedded(folder) as database:
        assert check(database) == []
        store = SqlStore(database)
        newest = store.kernel(GEMM, DEVICE.key, "sustained")
        assert newest is not None
        assert newest.id in [record.id for record in store.kernels()]
        with database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("SELECT max(seq) FROM kernel_figures").scalar() == 2
        store.add_candidate(candidate(CANDIDATES + 1, config=config(CANDIDATES + 1)))
