"""What kernels are listed by, on both databases: written with the kernel, gone with it, and made of what an older
schema has."""

from __future__ import annotations

from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, select, text

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, kernel
from tirgemm.gemm import Range
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning_db import Database, SqlStore, schema
from tirgemm.tuning_db.models import KernelFigureRow

TIMED = Timings(
    {
        "sustained": Timing(
            10.0, 41, {"default": BaselineTime(15, 1.5), "b": BaselineTime(12, 1.2), "a": BaselineTime(20, 2.0)}
        ),
        "isolated": Timing(99.0),
    }
)


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
    ):
        store.put_kernel(kernel(**values))
    with database.read() as connection:
        before = figures(connection)
    assert [row["us"] for row in before] == [10.0, 99.0, None, None]
    with database.write() as connection:
        command.downgrade(schema.alembic_config(connection), "0008")
    with database.write() as connection:
        connection.execute(text("UPDATE kernels SET timings = '[]' WHERE role = 'unverified'"))
        command.upgrade(schema.alembic_config(connection), "head")
    with database.read() as connection:
        assert figures(connection) == before
