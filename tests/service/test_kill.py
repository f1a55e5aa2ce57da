"""``kill -9`` of worker, measuring child, server, and all of them, in the middle of a job: what was recorded stays."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from tests.service.processes import Serve, alive, command_line, descendants, kill
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning_db import Database, Job, JobQueue, SqlStore, StoredEvent
from tirgemm.tuning_db.models import AttemptRow

GEMM = Gemm.parse("35x27x29:f32:nn")
TRIALS = 10
VICTIMS = ["worker", "measuring child", "server", "everything"]


class Records:
    """What is committed, read past the service."""

    def __init__(self, data: Path, job_id: str) -> None:
        self.database = Database.embedded(data)
        self.job_id = job_id

    def candidates(self) -> dict[str, Candidate]:
        actual = SqlStore(self.database).candidates(GEMM, self.job().request.device.key, "sustained")
        return {candidate.config.digest: candidate for candidate in actual}

    def events(self) -> list[StoredEvent]:
        return JobQueue(self.database).events(self.job_id)

    def job(self) -> Job:
        actual = JobQueue(self.database).job(self.job_id)
        assert actual is not None
        return actual

    def status(self) -> str:
        return self.job().status

    def lost_attempts(self) -> int:
        with self.database.read() as connection:
            wanted = select(func.count()).select_from(AttemptRow).where(AttemptRow.recorded_at.is_(None))
            return int(connection.execute(wanted).scalar_one())


def strike(server: Serve, victim: str) -> bool:
    """SIGKILL to the victim; False where it does not run at this moment."""
    worker = server.worker_pid()
    if victim == "everything":
        server.kill_all()
    elif victim == "server":
        left = descendants(server.process.pid)
        server.process.kill()
        server.process.wait(10)
        deadline = time.monotonic() + 15
        while any(map(alive, left)):
            assert time.monotonic() < deadline, "the worker outlives its server"
            time.sleep(0.02)
    elif victim == "worker" and worker:
        kill(worker)
    elif victim == "measuring child" and worker:
        measuring = [pid for pid in descendants(worker) if b"tirgemm.tuning.measure" in command_line(pid)]
        for pid in measuring:
            kill(pid)
        return bool(measuring)
    else:
        return False
    return True


def check_kept(before: dict[str, Candidate], after: dict[str, Candidate]) -> None:
    """Every record of ``before`` is in ``after`` as it was; only the races after the search may have added samples."""
    for digest, old in before.items():
        new = after[digest]
        assert (new.status, new.attempt, new.message) == (old.status, old.attempt, old.message), digest
        assert new.sample_sets[: len(old.sample_sets)] == old.sample_sets, digest
        added = {samples.reason for samples in new.sample_sets[len(old.sample_sets) :]}
        assert added <= {"selection", "report", "other_regime"}, digest


@pytest.mark.slow
def test_kills_at_random_moments_lose_no_record_and_measure_nothing_twice(tmp_path: Path) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    victims = rng.sample(VICTIMS, len(VICTIMS))
    options = ("--lease-seconds", "2")
    server = Serve(tmp_path, *options)
    try:
        body: dict[str, Any] = {"gemm": str(GEMM), "budget": {"trials": TRIALS, "seconds": 60}}
        answer = httpx.post(f"{server.url}/v1/kernels", json=body, headers={"Prefer": "wait=0"}, timeout=30)
        records = Records(tmp_path, answer.json()["job"]["id"])
        kills = 0
        deadline = time.monotonic() + 240
        for victim in victims:
            wait_for_progress(records)
            time.sleep(rng.uniform(0, 2.5))
            before, events = records.candidates(), records.events()
            while not strike(server, victim) and time.monotonic() < deadline and records.status() == "running":
                time.sleep(0.05)
            kills += 1
            check_kept(before, records.candidates())
            assert records.events()[: len(events)] == events
            if server.process.poll() is not None:
                server = Serve(tmp_path, *options)
        while records.status() != "done":
            assert time.monotonic() < deadline, f"the job is still {records.status()}: {server.log.read_text()[-2000:]}"
            assert records.status() in ("queued", "running"), records.job().error
            time.sleep(0.1)
        final = records.candidates()
        check_kept(before, final)
        measured = [c for c in final.values() if c.status is Status.MEASURED]
        assert measured
        for candidate in measured:
            assert [s.reason for s in candidate.sample_sets].count("search") <= 1, "measured again by the search"
        assert records.lost_attempts() <= kills, "a kill costs at most the candidate in flight"
        document = httpx.post(f"{server.url}/v1/kernels", json=body, timeout=30)
        assert (document.status_code, document.json()["role"]) == (200, "tuned")
        assert document.json()["certificate"]["passed"] is True
    finally:
        server.kill_all()


def wait_for_progress(records: Records) -> None:
    """Until the job has begun and no death counts against it, or has ended: three deaths without a measurement between
    them would set it aside."""
    deadline = time.monotonic() + 40
    while records.status() in ("queued", "running") and time.monotonic() < deadline:
        if records.events() and records.job().attempts <= 1:
            return
        time.sleep(0.05)
