"""Opening a tuning database: new, again, together, and every kind of one that cannot be opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import traceback
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.contract.storage.databases import read_only, unwritable
from tests.waiting import PATIENCE_S
from tirgemm._user_folders import DATABASE
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, MissingExtra, SchemaTooNew, StorageFull, StoreError, StoreUnavailable
from tirgemm.tuning_db import Database, SqlStore, schema
from tirgemm.tuning_db.models import Base

REPOSITORY = Path(__file__).parents[2]
DEVICE = Device("cpu", "x86-64-v3", "Test CPU", units=3, memory_bytes=3 << 30, uuid="cpu-1")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def set_version(folder: Path, value: str) -> None:
    with sqlite3.connect(folder / DATABASE) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (value,))
    connection.close()


@pytest.mark.parametrize("name", ["data", "a folder, with 100% odd #name?é"])
def test_a_new_folder_gets_a_database_with_the_current_schema(tmp_path: Path, name: str) -> None:
    with Database.embedded(tmp_path / "not" / "there" / name) as database:
        with database.read() as connection:
            assert schema.version(connection) == schema.HEAD
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1
        assert database.blobs.get(database.blobs.put(b"x")) == b"x"
    assert (tmp_path / "not" / "there" / name / DATABASE).is_file()


def test_migrations_make_exactly_the_tables_of_the_models(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database, database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_known_versions_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory.from_config(schema.alembic_config())
    assert scripts.get_current_head() == schema.HEAD
    assert sorted(schema.KNOWN) == sorted(script.revision for script in scripts.walk_revisions())


def test_opening_again_keeps_what_was_stored(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        sha256 = SqlStore(database).put_blob(b"kept")
        SqlStore(database).put_device(DEVICE)
    with Database.embedded(tmp_path) as database, database.read() as connection:
        assert connection.exec_driver_sql("SELECT key FROM devices").scalar() == DEVICE.key
        assert database.blobs.get(sha256) == b"kept"


def test_processes_that_open_a_new_database_together_all_succeed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tuning_db import Database; "
        "Database.embedded(Path(sys.argv[1])).close()"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment) for _ in range(3)]
    assert [process.wait(PATIENCE_S) for process in started] == [0, 0, 0]
    Database.embedded(tmp_path).close()


def test_a_database_of_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    Database.embedded(tmp_path).close()
    set_version(tmp_path, "9999")
    before = contents(tmp_path)
    with pytest.raises(SchemaTooNew, match=r"'9999'.*'0014'.*Upgrade tirgemm"):
        Database.embedded(tmp_path)
    assert contents(tmp_path) == before


def test_tables_named_as_ours_without_a_version_are_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("CREATE TABLE candidates (mine TEXT)")
    connection.close()
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="no version"):
        Database.embedded(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("junk", [b"this is no database at all\n" * 300, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / DATABASE).write_bytes(junk)
    with pytest.raises(StoreError, match=r"damaged .*backup"):
        Database.embedded(tmp_path)
    assert (tmp_path / DATABASE).read_bytes() == junk


def test_a_database_damaged_in_the_middle_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        SqlStore(database).put_device(DEVICE)
    file = tmp_path / DATABASE
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(StoreError, match="damaged"), Database.embedded(tmp_path) as database:
        SqlStore(database).history(DEVICE.key, "sustained")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    with read_only(sealed):
        with pytest.raises(StoreError, match=r"sealed.*user can write"):
            Database.embedded(sealed)
        with pytest.raises(StoreError, match=r"inside.*user can write"):
            Database.embedded(sealed / "inside")
        assert list(sealed.iterdir()) == []


def test_a_database_that_cannot_be_written_is_read_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "an odd #folder?%20"
    with Database.embedded(folder) as database:
        SqlStore(database).put_device(DEVICE)
        sha256 = database.blobs.put(b"kept")
    before = contents(folder)
    with read_only(folder):
        with pytest.raises(StoreError, match=r"odd.*user can write"):
            Database.embedded(folder)
        with Database.embedded(folder, to_read=True) as database:
            assert SqlStore(database).device(DEVICE.key) == DEVICE
            assert database.blobs.get(sha256) == b"kept"
            with pytest.raises(StoreUnavailable, match=r"cannot be written .read-only here.*user can write"):
                SqlStore(database).put_device(DEVICE.with_(model="Another"))
    assert contents(folder) == before
    with Database.embedded(folder, to_read=True) as database:
        SqlStore(database).put_device(DEVICE.with_(model="Another"))


@pytest.mark.parametrize("has_index", [True, False])
def test_a_log_that_a_kill_left_is_read_by_its_index_and_refused_without(tmp_path: Path, has_index: bool) -> None:
    folder = tmp_path / "killed"
    with Database.embedded(tmp_path / "data") as database:
        SqlStore(database).put_device(DEVICE)  # into the log, which the last to close it writes back
        shutil.copytree(tmp_path / "data", folder)
    if not has_index:
        (folder / f"{DATABASE}-shm").unlink()
    with read_only(folder), ExitStack() as stack:
        if not has_index:
            stack.enter_context(pytest.raises(StoreUnavailable, match=rf"killed.*{DATABASE}-wal.*copy its folder"))
        with Database.embedded(folder, to_read=True) as database:
            assert SqlStore(database).device(DEVICE.key) == DEVICE


def test_a_database_of_an_older_schema_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    Database.embedded(tmp_path / "data").close()
    set_version(tmp_path / "data", "0013")
    with read_only(tmp_path / "data"), pytest.raises(StoreUnavailable, match=r"'0013'.*'0014'; copy its folder"):
        Database.embedded(tmp_path / "data", to_read=True)


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("I am a file")
    with pytest.raises(StoreError, match="data folder"):
        Database.embedded(tmp_path / "data")


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        store = SqlStore(database)
        store.put_device(DEVICE)
        with database.write() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        big = DEVICE.with_(model="Big", features=tuple(f"feature-{number}" for number in range(5000)))
        with pytest.raises(StorageFull, match="no space"):
            store.put_device(big)
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT key FROM devices").scalars().all() == [DEVICE.key]


@pytest.mark.parametrize("name", ["SQLITE_IOERR_WRITE", "SQLITE_READONLY", "SQLITE_CANTOPEN"])
def test_a_disk_that_turns_read_only_is_said_and_may_turn_back(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    with Database.embedded(folder) as database, ExitStack() as stack:

        def writable() -> bool:
            return database.writable

        SqlStore(database).put_device(DEVICE)
        # Connections that are open find that they cannot write, new ones beside another's that they may not; where
        # there is no other, what they share cannot be made.
        if name == "SQLITE_READONLY":
            other = stack.enter_context(closing(sqlite3.connect(folder / DATABASE)))
            other.execute("SELECT count(*) FROM devices").fetchall()
        if name != "SQLITE_IOERR_WRITE":
            database.engine.dispose()
        with unwritable(folder):
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"cannot be .*written|unable to open") as caught:
                    SqlStore(database).put_device(DEVICE.with_(model="Another"))
                origin = getattr(caught.value.__cause__, "orig", None)
                assert getattr(origin, "sqlite_errorname", "").startswith(name)
            assert not writable()
            with pytest.raises(StoreUnavailable, match="Operation not permitted"):
                database.blobs.put(b"x")
            if name != "SQLITE_CANTOPEN":
                with database.read() as connection:
                    assert connection.exec_driver_sql("SELECT key FROM devices").scalars().all() == [DEVICE.key]
        assert writable()
        SqlStore(database).put_device(DEVICE.with_(model="Another"))
        assert len(database.blobs.put(b"x")) == 64
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM devices").scalar() == 2


def test_a_writer_waits_for_another_one(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as first, Database.embedded(tmp_path) as second:
        thread = threading.Thread(target=lambda: SqlStore(second).put_device(DEVICE))
        with first.write() as connection:
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            assert connection.exec_driver_sql("SELECT count(*) FROM devices").scalar() == 0
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        with first.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM devices").scalar() == 1


def test_a_write_that_fails_is_undone(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        with pytest.raises(ZeroDivisionError), database.write() as connection:  # noqa: PT012
            connection.exec_driver_sql("INSERT INTO workers (name, devices, seen) VALUES ('w', '[]', 0)")
            raise ZeroDivisionError
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM workers").scalar() == 0


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "mysql://host/name",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?uri=true",
        "oracle+x://",
    ],
)
def test_a_url_that_names_no_database_of_ours_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest, match="database"):
        Database(url, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:s3cret@127.0.0.1:1/none",
        "postgresql://someone@/none?host=127.0.0.1&port=1&password=s3cret",
        "postgresql://someone@127.0.0.1:1/none?sslpassword=s3cret",
    ],
)
def test_no_error_tells_the_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(StoreError, match=r"database postgresql\+psycopg://someone.*127\.0\.0\.1") as caught:
        Database(url, tmp_path)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:p@s3cret@127.0.0.1:1/none",
        "postgresql://someone:p@s3cret/word@127.0.0.1:1/none",
        "postgresql://someone:p@host:s3cret/none",
    ],
)
def test_a_password_that_would_be_a_host_is_not_told(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest, match="the one given") as caught:
        Database(url, tmp_path)
    told = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in told


def test_a_missing_driver_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"tirgemm\[postgres\]"):
        Database("postgresql://someone@127.0.0.1:1/none", tmp_path)


def test_a_sqlite_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(StoreError, match=r"is 3\.34\.1, and 3\.35 is needed.*--db"):
        Database.embedded(tmp_path)


def test_a_sqlite_without_mathematics_gets_the_logarithm_that_lists_of_batches_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite3.connect

    def without(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(*arguments, **options)
        # As in a library that was built without it: there is no function of this name.
        connection.create_function("ln", 1, None)
        return connection

    monkeypatch.setattr(sqlite3.dbapi2, "connect", without)
    with Database.embedded(tmp_path) as database, database.read() as connection:
        values = connection.exec_driver_sql("SELECT ln(4.0), ln(NULL)").one()
    assert values == (pytest.approx(1.3862943611), None)
