"""Repair of a damaged SQLite database: what is lost, what is kept beside it, and who is refused."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from tests.contract.storage.databases import DEVICE, kernel
from tests.helpers.command_line import own_folders, runner
from tests.tuning_db.damaged_databases import (
    CANDIDATES,
    PAGE,
    contents,
    damage,
    damage_root,
    lost,
    require_whole,
    rows,
)
from tirgemm._user_folders import DATABASE, SERVER_LOCK
from tirgemm.errors import AlreadyRunning, DamagedDatabase, InvalidRequest, SchemaTooNew, StorageFull
from tirgemm.service.jobs.data_lock import ProcessLock
from tirgemm.tuning_db import Database, SqlStore, schema
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.access.audit import AuditLog
from tirgemm.tuning_db.database import damage_marker
from tirgemm.tuning_db.table_list import table_list_file
from tirgemm.tuning_db.upkeep import repair as repairs
from tirgemm.tuning_db.upkeep.admin import check
from tirgemm.tuning_db.upkeep.repair import Repaired, repair, repair_if_found_damaged


@pytest.mark.parametrize("index", ["ix_candidates_counts", "sqlite_autoindex_candidates_1", "ix_kernel_figures_us_seq"])
def test_a_damaged_index_is_built_anew_and_nothing_is_lost(data: Path, index: str) -> None:
    damage_root(data, index)
    before = (data / DATABASE).read_bytes()
    done = repair(data / DATABASE, data)
    assert lost(done) == {}
    assert {table.name: table.rows for table in done.tables}["candidates"] == CANDIDATES
    assert done.damaged_file is not None
    assert done.damaged_file.read_bytes() == before
    require_whole(data)


@pytest.mark.parametrize("page", ["the first", "of the list of tables"])
@pytest.mark.parametrize("content", [b"\0", b"\xff"])
def test_damaged_pages_that_every_new_database_has_are_taken_from_one(data: Path, page: str, content: bytes) -> None:
    file = data / DATABASE
    before = bytearray(file.read_bytes())
    start = 0 if page == "the first" else before.index(b"CREATE TABLE kernel_documents") // PAGE * PAGE
    before[start : start + PAGE] = content * PAGE
    file.write_bytes(before)
    with pytest.raises(DamagedDatabase):
        Database.embedded(data)
    done = repair_if_found_damaged(data)
    assert done is not None
    assert lost(done) == {}
    assert {table.name: table.rows for table in done.tables}["candidates"] == CANDIDATES
    assert done.damaged_file is not None
    assert done.damaged_file.read_bytes() == before
    require_whole(data)


def test_a_damaged_page_of_candidates_costs_its_rows_and_their_samples(data: Path) -> None:
    damage(data, "<candidate 60>")
    before = (data / DATABASE).read_bytes()
    done = repair(data / DATABASE, data)
    kept = rows(data, "candidates")
    assert CANDIDATES - 15 < kept < CANDIDATES
    assert lost(done) == {"candidates": CANDIDATES - kept, "sample_sets": CANDIDATES - kept}
    assert done.damaged_file is not None
    assert done.damaged_file.read_bytes() == before
    assert done.damaged_file.name.startswith(f"{DATABASE}.damaged-2")
    assert not list(data.glob("*.repair*"))
    with Database.embedded(data) as database:
        messages = {known.message for known in SqlStore(database).history(DEVICE.key, "sustained")}
        entry = AuditLog(database).entries()[0].entry
    assert {f"<candidate {number}>" for number in (1, 40, 80, CANDIDATES)} <= messages
    assert "<candidate 60>" not in messages
    assert (entry.action, entry.object) == ("db repair", str(done)[:200])
    require_whole(data)
    assert repair(data / DATABASE, data) == Repaired(data / DATABASE), "it is whole now"


def test_nothing_is_repaired_while_somebody_has_it_open(data: Path) -> None:
    damage(data, "<candidate 60>")
    before = contents(data)
    with Database.embedded(data) as database:
        SqlStore(database).kernels()
        with pytest.raises(AlreadyRunning, match=r"tirgemm\.db is open in another process; stop what uses it"):
            repair(data / DATABASE, data)
    assert contents(data) == before


@pytest.mark.parametrize("start", [0, 30 * PAGE])
def test_nothing_is_repaired_while_another_process_has_it_open(data: Path, start: int) -> None:
    file = data / DATABASE
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM gemms').fetchall(); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with file.open("r+b") as content:
            content.seek(start)
            content.write(b"\xff" * PAGE)
        with pytest.raises(AlreadyRunning, match="is open in another process; stop what uses it"):
            repair(file, data)
        assert not list(data.glob("*.damaged-*"))
        assert other.stdin is not None
        other.stdin.close()
    assert repair(file, data).damaged_file is not None


def test_whoever_waits_to_open_it_gets_the_repaired_one(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(data, "<candidate 60>")
    real, refused = repairs._salvaged, list[str]()

    def salvaged(*arguments: Any) -> Any:
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            rows(data, "candidates")
        refused.append(str(caught.value))
        return real(*arguments)

    monkeypatch.setattr(repairs, "_salvaged", salvaged)
    with closing(sqlite3.connect(data / DATABASE)) as waits:
        repair(data / DATABASE, data)
        assert waits.execute("PRAGMA quick_check").fetchall() == [("ok",)], "it is the same file"
    assert refused == ["database is locked"]


def test_a_repair_that_fails_leaves_the_file_as_it_was(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    damage(data, "<candidate 60>")
    before = contents(data)
    monkeypatch.setattr(repairs, "_complete", fails)
    with pytest.raises(StorageFull, match="No space left on device; it is as it was"):
        repair(data / DATABASE, data)
    assert contents(data) == before


def test_what_was_written_last_counts_and_its_log_is_kept(data: Path) -> None:
    damage(data, "<candidate 60>")
    with Database.embedded(data) as database:
        SqlStore(database).put_device(DEVICE.with_(arch="x86-64-v4"))
        log = (data / f"{DATABASE}-wal").read_bytes()
        # As after a kill: the log was not written back.
        shutil.copytree(data, data.with_name("killed"))
    killed = data.with_name("killed")
    done = repair(killed / DATABASE, killed)
    assert done.damaged_file is not None
    assert done.damaged_file.with_name(f"{done.damaged_file.name}-wal").read_bytes() == log
    assert rows(killed, "devices") == 2


def test_of_a_file_that_was_cut_off_what_is_left_comes_over(data: Path) -> None:
    file = data / DATABASE
    cut = file.read_bytes()[: 70 * PAGE]
    file.write_bytes(cut)
    done = repair(file, data)
    assert done.damaged_file is not None
    assert done.damaged_file.read_bytes() == cut
    assert 0 < rows(data, "candidates") < CANDIDATES
    assert rows(data, "kernels") == 2
    require_whole(data)


def test_lost_api_keys_let_nobody_in(data: Path) -> None:
    damage_root(data, "api_keys")
    done = repair(data / DATABASE, data)
    assert (lost(done), done.keys_lost) == ({"api_keys": 1}, True)
    assert "its API keys are lost: nobody is let in before `tirgemm keys create`" in str(done)
    with Database.embedded(data) as database:
        (key,) = KeyTable(database).entries()
    assert key.name == "lost in a repair"
    assert key.revoked_at is not None


def test_lost_kernels_take_what_refers_to_them_along_and_numbers_are_not_given_out_again(data: Path) -> None:
    damage_root(data, "kernels")
    assert lost(repair(data / DATABASE, data)) == {"kernels": 2}
    with Database.embedded(data) as database:
        assert check(database) == []
        store = SqlStore(database)
        assert store.kernels() == []
        store.put_kernel(kernel(artifact_sha256=store.put_blob(b"artifact"), artifact_bytes=8))
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT seq FROM kernels").scalars().all() == [3]
            assert connection.exec_driver_sql("SELECT seq FROM kernel_figures").scalars().all() == [3]


def test_an_older_schema_is_repaired_and_brought_up_to_date(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / DATABASE}", poolclass=NullPool)
    with engine.begin() as connection:
        schema.migrate(connection, "0008")
        connection.exec_driver_sql("INSERT INTO devices VALUES ('a', '{}', 'now')")
        connection.exec_driver_sql("INSERT INTO workers (name, devices, seen) VALUES ('w', '[]', 0)")
        page = connection.exec_driver_sql("SELECT rootpage FROM sqlite_master WHERE name = 'workers'").scalar_one()
    file = bytearray((tmp_path / DATABASE).read_bytes())
    file[(page - 1) * PAGE : page * PAGE] = b"\xff" * PAGE
    (tmp_path / DATABASE).write_bytes(file)
    with pytest.raises(DamagedDatabase, match="was not brought to schema"):
        Database.embedded(tmp_path)
    assert lost(repair_if_found_damaged(tmp_path) or Repaired(tmp_path)) == {"workers": 1}
    with Database.embedded(tmp_path) as database, database.read() as connection:
        assert schema.version(connection) == schema.HEAD
        assert connection.exec_driver_sql("SELECT key FROM devices").scalars().all() == ["a"]


def test_what_cannot_be_read_at_all_or_is_no_tuning_database_is_refused_and_left_alone(data: Path) -> None:
    file = data / DATABASE
    damage(data, "<candidate 60>")
    whole = file.read_bytes()
    table_list_file(file).unlink()
    for junk in (b"\xff" * PAGE + whole[PAGE:], b"no database at all\n" * 500, whole[: 8 * PAGE]):
        file.write_bytes(junk)
        with pytest.raises(DamagedDatabase, match=r"nothing of .* can be read .*put a backup back"):
            repair(file, data)
        assert contents(data) == {DATABASE: junk}
    file.unlink()
    with pytest.raises(InvalidRequest, match="there is no database file"):
        repair(file, data)
    with closing(sqlite3.connect(file)) as foreign, foreign:
        foreign.execute("CREATE TABLE another (program TEXT)")
    with pytest.raises(InvalidRequest, match="is no tuning database"):
        repair(file, data)
    with closing(sqlite3.connect(file)) as foreign, foreign:
        foreign.execute("CREATE TABLE alembic_version (version_num TEXT)")
        foreign.execute("INSERT INTO alembic_version VALUES ('9999')")
    with pytest.raises(SchemaTooNew, match="'9999'"):
        repair(file, data)


def test_only_what_was_found_to_be_damaged_is_looked_at(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(data, "<candidate 60>")
    assert repair_if_found_damaged(data) is None, "nobody has met the damage"
    with Database.embedded(data) as database, Database.embedded(data) as other:
        with pytest.raises(
            DamagedDatabase,
            match="`tirgemm serve` repairs that of a data folder by itself, `tirgemm db repair` by hand",
        ):
            SqlStore(database).history(DEVICE.key, "sustained")
        assert other.damage == database.damage != ""
    assert damage_marker(data / DATABASE).is_file()
    done = repair_if_found_damaged(data)
    assert done is not None
    assert set(lost(done)) == {"candidates", "sample_sets"}
    assert str(done) in caplog.messages
    assert f"as it was: {done.damaged_file}" in str(done)
    assert repair_if_found_damaged(data) is None
    require_whole(data)


def test_a_file_that_a_url_names_is_left_to_its_owner(data: Path) -> None:
    damage(data, "<candidate 60>")
    with Database(f"sqlite:///{data / DATABASE}", data) as database:
        with pytest.raises(DamagedDatabase):
            SqlStore(database).history(DEVICE.key, "sustained")
        assert database.damage != ""
    assert not damage_marker(data / DATABASE).exists()
    assert repair_if_found_damaged(data) is None


def test_the_command_repairs_what_nobody_serves(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(data.parent, monkeypatch)
    call = runner(capsys, "db", "repair", "--data", str(data))
    assert call() == (0, f"database {data / DATABASE} is whole; nothing was changed\n", "")
    damage_root(data, "sample_sets")
    damage_root(data, "api_keys")
    with ProcessLock(data / SERVER_LOCK, "the folder"):
        code, _, err = call()
        assert (code, "is in use by process" in err) == (1, True)
    code, out, _ = call("--json")
    document = json.loads(out)
    assert (code, document["whole"], document["keys_lost"]) == (0, False, True)
    assert document["tables"]["candidates"] == {"rows": CANDIDATES, "lost": 0}
    assert document["tables"]["sample_sets"] == {"rows": CANDIDATES, "lost": 0}
    assert document["tables"]["api_keys"] == {"rows": 0, "lost": 1}
    assert Path(document["damaged_file"]).is_file()
    code, _, err = call("--db", "sqlite:////x.db")
    assert (code, "leave out --db" in err) == (2, True)
    code, _, err = runner(capsys, "db", "repair", "--data", str(data.parent / "none"))()
    assert (code, "holds no tuning database" in err) == (2, True)
