"""Fixtures of the contract tests of the job queue: a queue by a clock of the test, and processes that claim."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.storage.databases import DEVICE
from tirgemm.tuning_db import Database, Job, JobQueue

REPOSITORY = Path(__file__).parents[3]
KEYS = [DEVICE.key]

# Claims until nothing is left and prints each id; with a second argument it then waits to be killed.
CLAIMER = """
import sys, time
from pathlib import Path
from tirgemm.tuning.effort import Effort
from tirgemm.tuning_db import Database, JobQueue
url, folder, owner, key, lease, hold = sys.argv[1:]
queue = JobQueue(Database(url, Path(folder)))
print("ready", flush=True)
sys.stdin.readline()
while (job := queue.claim(owner, [key], float(lease))) is not None:
    print(job.id, flush=True)
    if hold == "hold":
        time.sleep(600)
"""


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def claimer(database: Database, owner: str, lease_s: float = 60.0, hold: str = "go") -> subprocess.Popen[str]:
    url = database.url.render_as_string(hide_password=False)
    arguments = [url, str(database.data_dir), owner, DEVICE.key, str(lease_s), hold]
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIMER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


class QueueFixtures:
    """Inherit and give the fixture ``database``: a new, empty Database."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def queue(self, database: Database, clock: FakeClock) -> JobQueue:
        return JobQueue(database, clock)

    def claimed(self, queue: JobQueue, owner: str = "w1", lease_s: float = 5.0) -> Job:
        job = queue.claim(owner, KEYS, lease_s)
        assert job is not None
        return job
