"""What a damaged table still gives away, and what of it other tables tell."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE, GEMM
from tests.tuning_db.damaged_databases import CANDIDATES, PAGE, damage_root, lost, require_whole, rows, whole_folder
from tirgemm._user_folders import DATABASE
from tirgemm.tuning_db import Database, JobQueue, SqlStore
from tirgemm.tuning_db.upkeep.repair import repair
from tirgemm.tuning_db.upkeep.salvage import DamagedTable


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_folder(tmp_path_factory)


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of a data folder."""
    return Path(shutil.copytree(whole, tmp_path / "data"))


@pytest.mark.parametrize("table", ["gemms", "devices", "artifacts"])
def test_a_lost_page_that_all_refers_to_is_told_by_the_rest(data: Path, table: str) -> None:
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        before = connection.execute(f"SELECT * FROM {table}").fetchall()
    assert len(before) == 1
    damage_root(data, table)
    assert lost(repair(data / DATABASE, data)) == {}
    assert [rows(data, name) for name in ("candidates", "sample_sets", "kernels", "jobs")] == [
        CANDIDATES,
        CANDIDATES,
        2,
        1,
    ]
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        after = connection.execute(f"SELECT * FROM {table}").fetchall()
    # When it was last described or stored is when the kernel was that tells of it.
    assert [row[:2] for row in after] == [row[:2] for row in before]
    with Database.embedded(data) as database:
        assert len(SqlStore(database).history(DEVICE.key, "sustained")) == CANDIDATES
        assert SqlStore(database).device(DEVICE.key) == DEVICE
    require_whole(data)


def test_a_lost_certificate_or_kernel_costs_no_row_that_can_be_without(data: Path) -> None:
    with Database.embedded(data) as database:
        newest = SqlStore(database).kernel(GEMM, DEVICE.key, "sustained")
        (job,) = JobQueue(database).jobs()
        assert newest is not None
        JobQueue(database).set_fallback(job.id, newest.id)
    damage_root(data, "certificates")
    assert set(lost(repair(data / DATABASE, data))) == {"certificates"}
    assert [rows(data, name) for name in ("kernels", "jobs")] == [2, 1]
    damage_root(data, "kernels")
    assert lost(repair(data / DATABASE, data)) == {"kernels": 2}
    with Database.embedded(data) as database:
        (left,) = JobQueue(database).jobs()
    assert (left.id, left.fallback_id) == (job.id, None)


NUMBERS = [*range(1, 101), *range(1_000_001, 1_000_101), *range(2_000_001, 2_000_101)]


def damaged_rows(file: Path, *, counted: bool, damaged: Sequence[int]) -> list[int]:
    """The numbers that are read of a table with wide gaps, when the pages of those rows and its index are damaged."""
    with closing(sqlite3.connect(file)) as connection, connection:
        count = "AUTOINCREMENT" if counted else ""
        connection.execute(f"CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY {count}, text TEXT UNIQUE)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"<{n}>" + "." * 400) for n in NUMBERS])
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_t_1'"
        ).fetchone()
        leaves = connection.execute("SELECT pageno FROM dbstat WHERE name = 't' AND pagetype = 'leaf'").fetchall()
    content = bytearray(file.read_bytes())
    pages = {
        root,
        *(page for (page,) in leaves for n in damaged if b"<%d>" % n in content[(page - 1) * PAGE : page * PAGE]),
    }
    assert len(pages) == 1 + len(damaged)
    for page in pages:
        content[(page - 1) * PAGE : page * PAGE] = b"\xff" * PAGE
    file.write_bytes(content)
    with closing(sqlite3.connect(file)) as connection:
        return sorted(row[0] for row in DamagedTable(connection, "t").rows(["id"]))


@pytest.mark.parametrize("counted", [True, False])
def test_behind_two_damaged_pages_rows_far_away_are_read(tmp_path: Path, *, counted: bool) -> None:
    read = damaged_rows(tmp_path / "file.db", counted=counted, damaged=[50, 2_000_100])
    assert [n for n in read if 1_000_000 < n < 2_000_000] == list(range(1_000_001, 1_000_101))
    assert {1, 40, 60, 100, 2_000_001, 2_000_080} <= set(read)
    assert not {50, 2_000_100} & set(read)
    assert len(read) > 300 - 2 * 10
