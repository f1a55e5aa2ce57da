"""Salvage of rows from damaged pages, and of lost rows from the tables that name them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE, GEMM
from tests.tuning_db.damaged_databases import (
    CANDIDATES,
    PAGE,
    contents,
    damage_root,
    lost,
    require_whole,
    rows,
)
from tirgemm._user_folders import DATABASE
from tirgemm.errors import DamagedDatabase
from tirgemm.tuning_db import Database, JobQueue, SqlStore
from tirgemm.tuning_db.table_list import kept_table_list, table_list_file
from tirgemm.tuning_db.upkeep.admin import vacuum
from tirgemm.tuning_db.upkeep.damaged_pages import DamagedPages, Walk
from tirgemm.tuning_db.upkeep.repair import repair, repair_if_found_damaged


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


def test_rows_behind_two_damaged_pages_and_a_wide_gap_are_read(tmp_path: Path) -> None:
    numbers = [*range(1, 101), *range(1_000_001, 1_000_101), *range(2_000_001, 2_000_101)]
    file, damaged = tmp_path / "file.db", (50, 2_000_100)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, text TEXT UNIQUE)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"<{n}>" + "." * 400) for n in numbers])
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
        leaves = connection.execute("SELECT pageno FROM dbstat WHERE name = 't' AND pagetype = 'leaf'").fetchall()
    content = bytearray(file.read_bytes())
    pages = [page for (page,) in leaves for n in damaged if b"<%d>" % n in content[(page - 1) * PAGE : page * PAGE]]
    assert len(pages) == len(damaged)
    for page in pages:
        content[(page - 1) * PAGE : page * PAGE] = b"\xff" * PAGE
    walk = Walk()
    read = [number for number, _ in DamagedPages(bytes(content), PAGE).rows(root, walk)]
    assert [n for n in read if 1_000_000 < n < 2_000_000] == list(range(1_000_001, 1_000_101))
    assert {1, 40, 60, 100, 2_000_001, 2_000_080} <= set(read)
    assert not {50, 2_000_100} & set(read)
    assert len(read) > 300 - 2 * 10
    assert (read, walk.intact) == (sorted(read), False)


@pytest.mark.parametrize("list_kept", [True, False])
def test_damaged_inner_pages_cost_nothing(data: Path, *, list_kept: bool) -> None:
    before = {name: rows(data, name) for name in ("candidates", "sample_sets", "kernels")}
    for name in ("candidates", "sample_sets"):
        damage_root(data, name)
    if not list_kept:
        table_list_file(data / DATABASE).unlink()
    assert lost(repair(data / DATABASE, data)) == {}
    assert {name: rows(data, name) for name in before} == before
    require_whole(data)


def test_what_was_deleted_does_not_come_back(data: Path) -> None:
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as connection:
        connection.execute("DELETE FROM sample_sets WHERE id % 40 <> 0")
        left = connection.execute("SELECT id FROM sample_sets").fetchall()
        assert connection.execute("PRAGMA freelist_count").fetchone() > (1,)
    damage_root(data, "candidates")
    damage_root(data, "sqlite_autoindex_candidates_1")
    assert lost(repair(data / DATABASE, data)) == {}
    assert rows(data, "candidates") == CANDIDATES
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        assert connection.execute("SELECT id FROM sample_sets").fetchall() == left


def damage_entry_of_kernels(data: Path, place: int) -> bytes:
    """Change a bit of an entry in the list of tables, so far behind its begin; the file as it is then."""
    content = bytearray((data / DATABASE).read_bytes())
    content[content.index(b"tablekernelskernels") + place] ^= 1
    (data / DATABASE).write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("place", [0, 5, 12, 19], ids=["type", "name", "table", "first page"])
def test_a_wrong_bit_in_the_list_of_tables_is_damage_and_costs_nothing(data: Path, place: int) -> None:
    damage_entry_of_kernels(data, place)
    with suppress(DamagedDatabase):
        Database.embedded(data).close()
    done = repair_if_found_damaged(data)
    assert done is not None
    assert lost(done) == {}
    assert [rows(data, name) for name in ("kernels", "candidates")] == [2, CANDIDATES]
    require_whole(data)


@pytest.mark.parametrize("place", [0, 5, 12], ids=["type", "name", "table"])
def test_without_a_list_of_tables_that_is_right_nothing_is_written(data: Path, place: int) -> None:
    content = damage_entry_of_kernels(data, place)
    table_list_file(data / DATABASE).unlink()
    with pytest.raises(DamagedDatabase, match=r"where its tables are is lost: kernels.*; put a backup back"):
        repair(data / DATABASE, data)
    assert contents(data) == {DATABASE: content}


@pytest.mark.parametrize("page", ["the first", "of the list of tables"])
def test_a_list_that_another_program_made_old_is_not_believed(data: Path, page: str) -> None:
    file = data / DATABASE
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("DELETE FROM sample_sets WHERE id > 10")
        connection.execute("VACUUM")
    content = bytearray(file.read_bytes())
    start = 0 if page == "the first" else content.index(b"CREATE TABLE kernel_documents") // PAGE * PAGE
    content[start : start + PAGE] = b"\xff" * PAGE
    file.write_bytes(content)
    with pytest.raises(DamagedDatabase, match="put a backup back"):
        repair(file, data)
    assert file.read_bytes() == content


def test_the_list_of_tables_is_kept_as_it_is(data: Path) -> None:
    file = data / DATABASE
    first = kept_table_list(file)
    assert first is not None
    with Database.embedded(data) as database:
        vacuum(database)
    second = kept_table_list(file)
    assert second is not None
    assert second.changes > first.changes
    table_list_file(file).write_text("{}")
    Database.embedded(data).close()
    assert kept_table_list(file) == second
    # Another file, such as a backup that somebody copied here, whose changes happen to be as many.
    table_list_file(file).write_text(json.dumps(asdict(replace(first, changes=second.changes))))
    Database.embedded(data).close()
    assert kept_table_list(file) == second
