"""A worker in a thread, and the jobs that it is given."""

from __future__ import annotations

import threading
from typing import Any

from tests.service.support import CPU, ODD, ScriptedEngine
from tests.waiting import PATIENCE_S
from tirgemm.gemm import Gemm
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning_db import Job, JobQueue, JobRequest


def submit(queue: JobQueue, gemm: str = ODD, fallback_id: str | None = None, **request: Any) -> str:
    return queue.submit(JobRequest(Gemm.parse(gemm), CPU, **request), fallback_id)[0].id


def job_of(queue: JobQueue, job_id: str) -> Job:
    job = queue.job(job_id)
    assert job is not None
    return job


class Running:
    """A worker in a thread, stopped at the end. Its leases do not run out where the machine has no time for them."""

    def __init__(self, queue: JobQueue, engine: ScriptedEngine, name: str = "") -> None:
        self.worker = Worker(queue, engine.store, engine, lease_s=60.0, name=name)
        self.thread = threading.Thread(target=self.worker.run, daemon=True)

    def __enter__(self) -> Worker:
        self.thread.start()
        return self.worker

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
