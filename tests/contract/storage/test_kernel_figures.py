"""What kernels are listed by, on both databases: written with the kernel, gone with it, and made of what an older
schema has."""

from __future__ import annotations

from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, delete, select, text, update

from tests.contract.storage.batch_contract import counted
from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, kernel
from tirgemm.config import Config
from tirgemm.events import BatchProposed
from tirgemm.gemm import Range
from tirgemm.timings import BaselineTime, ConfigOrigin, SearchSummary, Timing, Timings
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore, schema
from tirgemm.tuning_db.answers.kernel_document import RENDERING
from tirgemm.tuning_db.answers.kernel_version import read_version
from tirgemm.tuning_db.models import KernelFigureRow, KernelRow
from tirgemm.tuning_db.upkeep.missing_rows import add_missing_rows

TIMED = Timings(
    {
        "sustained": Timing(
            10.0, 41, {"default": BaselineTime(15, 1.5), "b": BaselineTime(12, 1.2), "a": BaselineTime(20, 2.0)}
        ),
        "isolated": Timing(99.0),
    }
)
# Longer than the columns are.
LONG_NAMES = Timings({"sustained": Timing(10.0, 41, {"b" * 65: BaselineTime(12, 1.2)})})


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    actual: Database = request.getfixturevalue(request.param)
    return actual


def figures(connection: Connection) -> list[dict[str, Any]]:
    rows = connection.execute(select(*KernelFigureRow.__table__.columns).order_by(KernelFigureRow.seq))
    return [row._asdict() for row in rows]


def test_figures_are_written_with_a_kernel_and_go_with_it(database: Database) -> None:
    store = SqlStore(database)
    given = store.put_kernel(kernel(timings=TIMED, gemm=OTHER_GEMM))
    with database.read() as connection:
        (row,) = figures(connection)
    work = 2.0 * 1023 * 1021 * 1027 * 3
    assert (row["us"], row["tflops"], row["work"]) == (10.0, pytest.approx(work / 10 / 1e6), work)
    assert (row["default_ratio"], row["baseline"], row["baseline_ratio"]) == (1.5, "b", 1.2)
    assert (row["m_min"], row["n"], row["k"], row["family"]) == (1023, 1021, 1027, "x86")
    assert store.delete_kernel(given.id)
    with database.read() as connection:
        assert figures(connection) == []


def test_an_older_schema_is_brought_up_to_the_same_figures(database: Database) -> None:
    store = SqlStore(database)
    for values in (
        {"timings": TIMED},
        {"timings": TIMED, "regime": "isolated", "device": OTHER_DEVICE},
        {"gemm": GEMM.with_(m=Range(1, 64)), "timings": Timings({"sustained": Timing(0.0)})},
        {"role": "unverified", "timings": Timings(predicted_us=3.0), "device": DEVICE},
        {"timings": LONG_NAMES, "config": Config("f" * 65, (("tile_n", 8),))},
    ):
        store.put_kernel(kernel(**values))
    with database.read() as connection:
        before = figures(connection)
    assert [row["us"] for row in before] == [10.0, 99.0, None, None, 10.0]
    with database.write() as connection:
        command.downgrade(schema.alembic_config(connection), "0008")
    with database.write() as connection:
        connection.execute(text("UPDATE kernels SET timings = '[]' WHERE role = 'unverified'"))
        command.upgrade(schema.alembic_config(connection), "head")
    with database.read() as connection:
        assert figures(connection) == before


def test_kernels_of_another_device_s_configs_are_known_in_an_older_schema(database: Database) -> None:
    store = SqlStore(database)
    for trials, key in ((1, DEVICE.key), (2, "longer than the column is " * 10)):
        search = SearchSummary(ended="shipped", shipped=ConfigOrigin(key, {}, False))
        stored = store.put_kernel(kernel(trials=trials, timings=Timings(search=search)))
    queue = JobQueue(database)
    job, _ = queue.submit(JobRequest(GEMM, DEVICE), fallback_id=stored.id)
    queue.add_event(job.id, BatchProposed())
    with database.read() as connection:
        before = figures(connection)
    with database.write() as connection:
        command.downgrade(schema.alembic_config(connection), "0011")
    with database.write() as connection:
        command.upgrade(schema.alembic_config(connection), "head")
    answers = [store.kernel(GEMM, DEVICE.key, "sustained", other_devices=asked) for asked in (False, True)]
    assert [answer and (answer.trials, answer.other_device) for answer in answers] == [(1, None), (2, key)]
    assert queue.job(job.id) == job
    assert [event.kind for event in queue.events(job.id)] == ["batch"], "what refers to the changed tables stays"
    with database.read() as connection:
        assert figures(connection) == before


def test_figures_of_kernels_that_an_older_process_stored_are_added(database: Database) -> None:
    store = SqlStore(database)
    for gemm in (GEMM, OTHER_GEMM):
        store.put_kernel(kernel(timings=TIMED, gemm=gemm))
    damaged = store.put_kernel(kernel(timings=TIMED))
    assert add_missing_rows(database) == 0
    with database.write() as connection:
        before = figures(connection)[:2]
        connection.execute(delete(KernelFigureRow).where(KernelFigureRow.gemm_id != before[0]["gemm_id"]))
        connection.execute(delete(KernelFigureRow).where(KernelFigureRow.seq > before[1]["seq"]))
        connection.execute(update(KernelRow).where(KernelRow.id == damaged.id).values(device=[]))
        version = read_version(connection)
    assert add_missing_rows(database) == 1
    with database.read() as connection:
        assert figures(connection) == before
        assert read_version(connection) > version


def test_what_is_missing_is_looked_up_by_an_index_where_the_kernels_are_too_many_for_the_memory_of_postgresql(
    postgres_database: Database,
) -> None:
    SqlStore(postgres_database).put_kernel(kernel())
    statements: list[str] = []
    with counted(postgres_database, statements):
        add_missing_rows(postgres_database)
    (look,) = (statement for statement in statements if "kernel_documents" in statement)
    with postgres_database.write() as connection:
        for row in (KernelRow, KernelFigureRow):
            values = {"seq": "number + 1000", "id": "lpad(to_hex(number), 32, '0')"}
            names = [column.name for column in row.__table__.columns]
            copied = ", ".join(values.get(name, name) for name in names)
            source = f"SELECT {copied} FROM {row.__tablename__}, generate_series(1, 5000) AS number"
            connection.exec_driver_sql(f"INSERT INTO {row.__tablename__} ({', '.join(names)}) {source}")
            connection.exec_driver_sql(f"ANALYZE {row.__tablename__}")
        connection.exec_driver_sql("SET LOCAL work_mem = '64kB'")
        plan = connection.exec_driver_sql(f"EXPLAIN {look}", {"rendering_1": RENDERING}).scalars().all()
    assert any("Index" in line and "kernel_figures" in line for line in plan), plan
    assert not any("Materialize" in line for line in plan), "it would be read whole for each kernel"
