"""Databases of every older schema, filled: brought up to date without a loss, or left alone where that fails."""

from __future__ import annotations

from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, MetaData, func, insert, select

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_GEMM, candidate, damage_page, kernel, key
from tirgemm._user_folders import DATABASE
from tirgemm.errors import DamagedDatabase
from tirgemm.events import BatchProposed
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore, schema
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.access.audit import AuditEntry, AuditLog
from tirgemm.tuning_db.models import ImportRow
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    actual: Database = request.getfixturevalue(request.param)
    return actual


def fill(database: Database) -> None:
    """A row or more in every table."""
    store, queue = SqlStore(database), JobQueue(database)
    job, _ = queue.submit(JobRequest(GEMM, DEVICE))
    assert queue.claim("w1", [DEVICE.key], 5.0)
    with store.fenced(job.id, "w1"):
        store.begin_attempt(key(1))
        store.add_candidate(candidate(1))
    queue.add_event(job.id, BatchProposed())
    store.put_kernel(kernel())
    with database.write() as connection:
        connection.execute(insert(ImportRow).values(sha256="0" * 64, header={}, imported_at="2026-01-01T00:00:00Z"))
    queue.register_worker("w1", [DEVICE])
    KeyTable(database).create("a team", "tune")
    AuditLog(database).add([AuditEntry(None, "POST", "/v1/kernels", 403, "127.0.0.1")])
    BatchTable(database).submit([WantedProblem(JobRequest(OTHER_GEMM, DEVICE), 0.1)], asked=1)


def counts(connection: Connection) -> dict[str, int]:
    """How many rows each table has."""
    tables = MetaData()
    tables.reflect(connection)
    return {
        name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
        for name, table in tables.tables.items()
    }


@pytest.mark.parametrize("revision", schema.KNOWN[:-1])
def test_a_filled_database_of_an_older_schema_loses_no_row(database: Database, revision: str) -> None:
    fill(database)
    with database.read() as connection:
        empty = [name for name, count in counts(connection).items() if not count]
    assert empty == []
    with database.write() as connection:
        command.downgrade(schema.alembic_config(connection), revision)
    with database.read() as connection:
        before = counts(connection)
    assert before["candidates"] == before["kernels"] == 1
    schema.upgrade(database.engine, database.place)
    with database.read() as connection:
        assert schema.version(connection) == schema.HEAD
        after = counts(connection)
    assert {name: after[name] for name in before} == before
    (job,) = JobQueue(database).jobs(status="running")
    assert job.request.gemm == GEMM
    assert SqlStore(database).kernel(GEMM, DEVICE.key, "sustained") is not None
    assert len(SqlStore(database).candidates(GEMM, DEVICE.key, "sustained")) == 1


def test_a_migration_that_fails_half_way_changes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database)
    with database.write() as connection:
        command.downgrade(schema.alembic_config(connection), "0008")
    with database.read() as connection:
        before = counts(connection)
    whole = command.upgrade

    def half(config: Any, _: str) -> None:
        whole(config, "0011")
        raise RuntimeError("the machine lost its power")

    with monkeypatch.context() as patched:
        patched.setattr(command, "upgrade", half)
        with pytest.raises(RuntimeError, match="power"):
            schema.upgrade(database.engine, database.place)
    with database.read() as connection:
        assert (schema.version(connection), counts(connection)) == ("0008", before)
    schema.upgrade(database.engine, database.place)
    with database.read() as connection:
        assert schema.version(connection) == schema.HEAD


def test_a_damaged_file_of_an_older_schema_is_not_migrated(sqlite_database: Database) -> None:
    fill(sqlite_database)
    folder = sqlite_database.data_dir
    with sqlite_database.write() as connection:
        command.downgrade(schema.alembic_config(connection), "0013")
    damage_page(sqlite_database, "candidates")
    file = folder / DATABASE
    damaged = file.read_bytes()
    with pytest.raises(DamagedDatabase, match=r"was not brought to schema .*put a backup back"):
        Database.embedded(folder)
    assert file.read_bytes() == damaged
