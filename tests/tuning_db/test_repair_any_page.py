"""Damage of several kinds to any page of a database: a repair keeps every row of other pages, and says what is lost."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.tuning_db.damaged_databases import PAGE, lost
from tirgemm._user_folders import DATABASE
from tirgemm.errors import DamagedDatabase
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.upkeep.admin import check
from tirgemm.tuning_db.upkeep.damaged_pages import DamagedPages, Walk
from tirgemm.tuning_db.upkeep.repair import repair

# Made anew, or written to by the repair.
OTHERS = ("alembic_version", "audit", "kernel_documents", "kernel_figures", "kernel_version")
KINDS = ("overwritten", "half written", "another page", "a bit of its begin", "a bit of its end")


def damaged(whole: bytes, page: int, kind: str) -> bytes:
    content = bytearray(whole[(page - 1) * PAGE : page * PAGE])
    if kind == "overwritten":
        return b"\xff" * PAGE
    if kind == "half written":
        return bytes(content[: PAGE // 2]) + bytes(PAGE // 2)
    if kind == "another page":
        other = page * 31 % (len(whole) // PAGE)
        return whole[other * PAGE : (other + 1) * PAGE]
    content[page * 7 % 64 if kind == "a bit of its begin" else -1 - page * 37 % (PAGE // 2)] ^= 1 << page % 8
    return bytes(content)


def keys(file: Path) -> dict[str, set[object]]:
    """What tells the rows of each table apart: its first column."""
    with closing(sqlite3.connect(file)) as connection:
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        names = {row[0] for row in named} - {*OTHERS}
        return {name: {row[0] for row in connection.execute(f"SELECT * FROM {name}")} for name in names}


def inner_pages(file: Path) -> list[int]:
    """The pages of tables that lead to those with the rows: to overwrite one costs nothing."""
    with closing(sqlite3.connect(file)) as connection:
        asked = (
            "SELECT pageno FROM dbstat JOIN sqlite_master USING (name) WHERE type = 'table' AND pagetype = 'internal'"
        )
        return [row[0] for row in connection.execute(asked)]


def leaves(file: Path) -> dict[int, tuple[str, set[object]]]:
    """The table of each page that holds rows, and their first columns."""
    pages = DamagedPages(file.read_bytes(), PAGE)
    with closing(sqlite3.connect(file)) as connection:
        by_page = connection.execute("SELECT pageno, name FROM dbstat WHERE pagetype = 'leaf'").fetchall()
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        held = dict[int, tuple[str, set[object]]]()
        for page, name in by_page:
            if name in tables - {*OTHERS}:
                rows = [row[0] for row in pages.rows_of(page, Walk())]
                asked = f"SELECT * FROM {name} WHERE rowid IN ({', '.join(map(str, rows))})"
                held[page] = name, {row[0] for row in connection.execute(asked)}
    return held


@pytest.mark.parametrize("turn", [0, 3])
def test_a_repair_keeps_what_is_on_other_pages_and_says_what_is_lost(whole: Path, tmp_path: Path, turn: int) -> None:
    content, before, held = (whole / DATABASE).read_bytes(), keys(whole / DATABASE), leaves(whole / DATABASE)
    data, repaired, inner = tmp_path / "data", 0, inner_pages(whole / DATABASE)
    assert inner
    for page in [*inner[turn // 3 :: 2], *range(1 + turn, len(content) // PAGE + 1, 6)]:
        kind = KINDS[0] if page in inner else KINDS[(page + page // 4) % len(KINDS)]
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(whole, data)
        file = data / DATABASE
        file.write_bytes(content[: (page - 1) * PAGE] + damaged(content, page, kind) + content[page * PAGE :])
        as_it_was, what = file.read_bytes(), f"page {page}, {kind}"
        try:
            done = repair(file, data)
        except DamagedDatabase:
            assert file.read_bytes() == as_it_was, what
            continue
        repaired += done.damaged_file is not None
        assert done.damaged_file is None or done.damaged_file.read_bytes() == as_it_was, what
        with Database.embedded(data) as database:
            # A bit within a text is not the file's to know: the row is left out, and named.
            assert all("is left out" in line and "a bit" in kind for line in check(database)), what
            SqlStore(database).kernels()
        table, on_page = held.get(page, ("", set()))
        told = lost(done)
        for name, after in keys(file).items():
            gone = before[name] - after
            assert name == table or (name, table) == ("sample_sets", "candidates") or not gone, what
            assert name != table or gone <= on_page, what
            number = told.get(name, 0)
            assert number is None or len(gone) <= len(after - before[name]) + number, what
    assert repaired
