"""A worker process, and the jobs that it is given, past the server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tirgemm import Gemm
from tirgemm.detect import device as detect_device
from tirgemm.errors import ServiceError
from tirgemm.tuning_db import Database, JobQueue, JobRequest
from verification.service.processes import await_exit, command, eventually

WAIT_SECONDS, END_SECONDS = 120.0, 20.0
# A worker that takes less of a processor for so long has nothing to do: it hears of a cancel after half a second, and
# lets what is measured go on for another half.
IDLE_SECONDS, IDLE_SHARE = 1.5, 0.1


@contextmanager
def worker(folder: Path, device: str = "cpu") -> Iterator[int]:
    """A worker on a data folder, alive: its process id; its job goes back to the queue at the end."""
    arguments = ["--data", str(folder), "--lock-dir", str(folder / "locks"), "--devices", device]
    process = subprocess.Popen(
        command("worker", *arguments), env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        if "serves" not in process.stdout.readline():
            raise ServiceError("the worker did not start")
        yield process.pid
    finally:
        process.terminate()
        await_exit(process, END_SECONDS)


def await_worker(database: Database) -> None:
    """Wait until a worker is registered. Raises ServiceError where none comes."""
    queue = JobQueue(database)
    if not eventually(lambda: queue.live_workers(END_SECONDS), WAIT_SECONDS, 0.01):
        raise ServiceError("no worker is registered")


def await_idle(pid: int) -> None:
    """Wait until a process and its children have nothing to do: what was being built for a job that ended has ended,
    and what was started for it is ready. Raises ServiceError where they go on, and where the process has ended."""
    before, deadline = _processor_seconds(pid), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(IDLE_SECONDS)
        now = _processor_seconds(pid)
        if sum(seconds - before.get(child, 0.0) for child, seconds in now.items()) < IDLE_SHARE * IDLE_SECONDS:
            return
        before = now
    raise ServiceError(f"the worker has not been idle for {WAIT_SECONDS:g} s")


def _processor_seconds(pid: int) -> dict[int, float]:
    """Of a process and each of its children."""
    taken: dict[int, float] = {}
    if not psutil.pid_exists(pid) or (process := psutil.Process(pid)).status() == psutil.STATUS_ZOMBIE:
        raise ServiceError("the worker has ended")
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            times = each.cpu_times()
            taken[each.pid] = times.user + times.system
    return taken


def submitted(database: Database, gemm: str, *, seconds: float) -> str:
    """The id of a new job for the CPU."""
    request = JobRequest(Gemm.parse(gemm), detect_device("cpu"), trials=64, seconds=seconds)
    return JobQueue(database).submit(request)[0].id


def await_status(database: Database, job_id: str, status: str) -> None:
    """Wait until a job has a status. Raises ServiceError where it does not come to it."""
    queue, deadline = JobQueue(database), time.monotonic() + WAIT_SECONDS
    while (job := queue.job(job_id)) is not None and job.status != status:
        if job.ended or time.monotonic() > deadline:
            raise ServiceError(f"job {job_id} is {job.status}, not {status}: {job.error}")
        time.sleep(0.05)
