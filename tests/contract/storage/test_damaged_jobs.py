"""Rows of jobs that make no sense any more, on every database."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy import update

from tests.contract.storage.databases import DEVICE, GEMM
from tests.contract.storage.queue_fixtures import KEYS
from tirgemm.errors import DamagedRow
from tirgemm.tuning_db import Database, JobQueue, JobRequest, rows
from tirgemm.tuning_db.models import JobRow
from tirgemm.tuning_db.upkeep.admin import check


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    actual: Database = request.getfixturevalue(request.param)
    return actual


def submitted(queue: JobQueue, count: int) -> list[str]:
    return [queue.submit(JobRequest(GEMM.with_(m=m), DEVICE))[0].id for m in range(3, 3 + count)]


def damage(database: Database, job_id: str, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(update(JobRow).where(JobRow.id == job_id).values(values))


@pytest.mark.parametrize("values", [{"regime": "sustainee"}, {"device": [1]}, {"effort": "stand"}])
@pytest.mark.parametrize("how", ["claim", "claim_fallback"])
def test_a_damaged_job_stops_no_other(database: Database, how: str, values: dict[str, Any]) -> None:
    queue = JobQueue(database)
    bad, good = submitted(queue, 2)
    damage(database, bad, **values)
    assert [job.id for job in queue.upcoming(KEYS, 8)] == [good]
    claimed = getattr(queue, how)("w1", KEYS, 5.0)
    assert claimed is not None
    assert claimed.id == good
    assert queue.progress([bad])[bad].status == "failed"
    assert queue.progress([bad])[bad].newest_event > 0, "its end is told"
    with pytest.raises(DamagedRow, match=f"row of job {bad} is damaged"):
        queue.job(bad)
    again, created = queue.submit(JobRequest(GEMM.with_(m=3), DEVICE))
    assert created, "whoever asks for the same again gets a new job"
    damage(database, again.id, **values)
    assert queue.claim("w2", KEYS, 5.0) is None, "one that is alone is failed, too"


def test_a_damaged_job_whose_columns_hold_no_json_stops_no_other(sqlite_database: Database) -> None:
    queue = JobQueue(sqlite_database)
    bad, good = submitted(queue, 2)
    connection = sqlite3.connect(sqlite_database.data_dir / "tirgemm.db")
    connection.execute("UPDATE jobs SET device = '{\"x' WHERE id = ?", (bad,))
    connection.commit()
    connection.close()
    assert [job.id for job in queue.jobs()] == [job.id for job in queue.upcoming(KEYS, 8)] == [good]
    (wrong,) = check(sqlite_database)
    assert wrong.startswith(f"job {bad} is left out: a column holds no JSON")
    claimed = queue.claim("w1", KEYS, 5.0)
    assert claimed is not None
    assert claimed.id == good
    with pytest.raises(DamagedRow):
        queue.job(bad)


def test_damaged_jobs_shorten_no_list(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "IDS_AT_ONCE", 2)
    queue = JobQueue(database)
    jobs = submitted(queue, 9)
    for job_id in jobs[4:8]:
        damage(database, job_id, device=[])
    assert [job.id for job in queue.jobs(4)] == [jobs[8], *jobs[3:0:-1]]
    assert [job.id for job in queue.jobs(4, after=jobs[1])] == [jobs[0]]
    assert [job.id for job in queue.jobs(2, "queued", GEMM.with_(m=3), KEYS)] == [jobs[0]]
    assert [job.id for job in queue.upcoming(KEYS, 6, skip=[jobs[2]])] == [jobs[0], jobs[1], jobs[3], jobs[8]]
    assert queue.jobs(0) == []


def test_the_check_names_each_damaged_job(database: Database) -> None:
    queue = JobQueue(database)
    jobs = submitted(queue, 4)
    assert check(database) == []
    for job_id in jobs[1:3]:
        damage(database, job_id, device=[])
    assert [line.split(" is left out: ")[0] for line in check(database)] == [f"job {job_id}" for job_id in jobs[1:3]]
