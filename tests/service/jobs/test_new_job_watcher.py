"""A worker without a job hears of a new one before it would claim again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from tirgemm.errors import StoreError
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.jobs import new_job_watcher
from tirgemm.service.jobs.new_job_watcher import NewJobWatcher
from tirgemm.tuning_db import Database, JobQueue, JobRequest


class ScriptedQueue(JobQueue):
    """A queue whose ``newest`` does one thing after the other."""

    def __init__(self, db: Database, *looks: Callable[[], int | None]) -> None:
        super().__init__(db)
        self.looks = list(looks)

    def newest(self) -> int | None:
        return self.looks.pop(0)()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_job_watcher, "POLL_SECONDS", PATIENCE_S)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path) as database:
        yield database


def submit(queue: JobQueue, gemm: Gemm) -> None:
    queue.submit(JobRequest(gemm, named_device("sm_90a"), trials=1, seconds=1.0))


def test_a_wait_ends_when_a_job_comes(db: Database) -> None:
    queue = JobQueue(db)

    def comes() -> int | None:
        submit(queue, Gemm(3, 5, 7))
        return queue.newest()

    scripted = ScriptedQueue(db, queue.newest, comes)
    NewJobWatcher(scripted, threading.Event()).wait()
    assert not scripted.looks, "it looked until the job was there, and no longer"


def test_a_job_that_came_between_two_waits_ends_the_second_at_once(db: Database) -> None:
    scripted = ScriptedQueue(db, lambda: 1, lambda: 2)
    waits = NewJobWatcher(scripted, threading.Event())
    waits.wait()
    assert len(scripted.looks) == 1
    waits.wait()
    assert not scripted.looks


def test_a_database_that_does_not_answer_ends_no_wait(db: Database) -> None:
    def fails() -> int | None:
        raise StoreError("gone")

    scripted = ScriptedQueue(db, fails, fails, lambda: 1)
    NewJobWatcher(scripted, threading.Event()).wait()
    assert not scripted.looks


def test_a_wait_ends_when_its_time_is_over_or_its_worker_stops(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    NewJobWatcher(ScriptedQueue(db), stop).wait()
    monkeypatch.setattr(new_job_watcher, "POLL_SECONDS", 0.0)
    NewJobWatcher(ScriptedQueue(db), threading.Event()).wait()
