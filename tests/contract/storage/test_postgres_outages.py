"""PostgreSQL that is frozen, stopped or full: an error in time, of the kind that is tried again, and a way back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.contract.storage.databases import DEVICE, GEMM, PostgresDatabases, database_name
from tests.service.support import CPU, serving
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import StoreUnavailable
from tirgemm.tuning_db import Database, JobQueue, JobRequest, schema
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem
from tirgemm.tuning_db.queue.job_rows import NewJob, add_jobs
from verification.service.postgres_server import find_programs, running
from verification.service.processes import alive, children

# Within which a busy machine answers, and for which some tests wait.
LIMIT_S = 3.0


@pytest.fixture
def limited(postgres: PostgresDatabases, tmp_path: Path) -> Iterator[Database]:
    with Database(postgres.emptied(tmp_path / "data"), tmp_path / "data", LIMIT_S) as database:
        yield database


def backend(database: Database) -> int:
    """The process that serves the one connection of a database's pool."""
    with database.read() as connection:
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def await_waiting(connection: psycopg.Connection[Any], count: int) -> None:
    """Until so many connections to the database wait for a lock."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    until(lambda: connection.execute(waits).fetchone() == (count,))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_frozen_server_is_given_up_in_time_and_its_connection_with_it(limited: Database) -> None:
    queue = JobQueue(limited)
    queue.register_worker("w1", [DEVICE])
    pid = backend(limited)
    # A second connection goes to another process of the server: the first one's freeze costs a single wait.
    with frozen(pid):
        assert [worker.name for worker in queue.live_workers(60)] == ["w1"]
        assert backend(limited) != pid


def test_a_freeze_in_the_middle_of_a_transaction_is_an_error_that_is_tried_again(limited: Database) -> None:
    def freeze() -> None:
        with limited.write() as connection:
            pid = int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            with frozen(pid):
                connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreUnavailable, match="no answer within"):
        freeze()
    assert JobQueue(limited).live_workers(60) == []


def test_a_statement_that_takes_too_long_is_ended(limited: Database) -> None:
    with pytest.raises(StoreUnavailable, match="statement timeout"), limited.read() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(200)")


def test_an_upgrade_may_wait_as_long_as_it_takes(postgres: PostgresDatabases, tmp_path: Path) -> None:
    url = postgres.fresh()
    opened: list[str] = []

    def open_it() -> None:
        with Database(url, tmp_path / "data", LIMIT_S) as database:
            opened.append(database.place)

    with postgres.connect(database_name(url)) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [schema._ADVISORY_LOCK])
        thread = threading.Thread(target=open_it)
        thread.start()
        await_waiting(other, 1)
        thread.join(LIMIT_S + 0.5)
        assert thread.is_alive(), "it waits for the other upgrade, whatever the limit"
        other.execute("SELECT pg_advisory_unlock_all()")
        thread.join(PATIENCE_S)
    assert len(opened) == 1


def test_a_service_is_not_ready_while_its_database_is_frozen_and_503_while_it_is_stopped(tmp_path: Path) -> None:
    with (
        running(find_programs()) as database,
        serving(tmp_path, db=database.url.replace("DATABASE", "postgres")) as service,
    ):
        service.queue.register_worker("w1", [CPU])
        assert service.http.get("/readyz").status_code == 200
        server = int((database.folder / "data" / "postmaster.pid").read_text().split()[0])
        with ExitStack() as stack:
            for pid in (server, *children(server)):
                stack.enter_context(frozen(pid))
            answer = service.http.get("/readyz")
            assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
            assert service.http.get("/healthz").status_code == 200
        # By itself, when the thawed server has come to its turn.
        until(lambda: service.http.get("/readyz").status_code == 200)
        os.kill(server, signal.SIGQUIT)
        until(lambda: not alive(server))
        for answer in (service.http.get("/v1/jobs"), service.post(device=CPU.key)):
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert service.http.get("/readyz").json()["code"] == "not_ready"


def test_a_deadlock_is_an_error_that_is_tried_again(postgres_database: Database) -> None:
    queue = JobQueue(postgres_database)
    queue.register_worker("w1", [DEVICE])
    queue.register_worker("w2", [DEVICE])
    both, errors = threading.Barrier(2), list[StoreUnavailable]()

    def write(*names: str) -> None:
        try:
            with postgres_database.write() as connection:
                for name in names:
                    connection.exec_driver_sql(f"UPDATE workers SET seen = 1 WHERE name = '{name}'")
                    if name == names[0]:
                        both.wait(PATIENCE_S)
        except StoreUnavailable as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=names) for names in (("w1", "w2"), ("w2", "w1"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ["deadlock" in str(error) for error in errors] == [True]


def test_batches_of_the_same_problems_in_another_order_end_in_no_deadlock(
    postgres: PostgresDatabases, postgres_database: Database
) -> None:
    batches = BatchTable(postgres_database)
    rising = [WantedProblem(JobRequest(GEMM.with_(m=m), DEVICE), -m) for m in range(1, 10)]
    falling = [WantedProblem(problem.request, -problem.expected_gain) for problem in rising]
    # The problems are known: else the second batch waits for those of the first, before it comes to the jobs.
    batches.cancel(batches.submit(rising, asked=9).id)
    observer = postgres.connect(str(postgres_database.url.database))
    with observer, ThreadPoolExecutor(2) as pool, postgres_database.write() as connection:
        # Each comes as far as the fifth problem, if it may: from there on the other's are in its way.
        add_jobs(postgres_database, connection, [NewJob(rising[4].request, {})], 1.0)
        added = [pool.submit(batches.submit, wanted, asked=9) for wanted in (rising, falling)]
        await_waiting(observer, 2)
        connection.rollback()
        assert [one.result(PATIENCE_S).states for one in added] == [{"queued": 9}] * 2


def test_a_batch_is_cancelled_when_no_other_is_being_added(
    postgres: PostgresDatabases, postgres_database: Database
) -> None:
    batches = BatchTable(postgres_database)
    first, second = (WantedProblem(JobRequest(GEMM.with_(m=m), DEVICE)) for m in (1, 2))
    batch = batches.submit([first], asked=1)
    observer = postgres.connect(str(postgres_database.url.database))
    with observer, ThreadPoolExecutor(2) as pool, postgres_database.write() as connection:
        add_jobs(postgres_database, connection, [NewJob(second.request, {})], 1.0)
        added = pool.submit(batches.submit, [second], asked=1)
        await_waiting(observer, 1)
        cancelled = pool.submit(batches.cancel, batch.id)
        await_waiting(observer, 2)
        connection.rollback()
        assert cancelled.result(PATIENCE_S).states == {"cancelled": 1}
        assert added.result(PATIENCE_S).states == {"queued": 1}
