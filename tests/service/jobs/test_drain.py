"""A worker that is told to stop: within seconds, and its job resumed by another one as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.support import CPU, ODD, ScriptedEngine, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import LeaseLost
from tirgemm.events import EventHandler
from tirgemm.gemm import Gemm
from tirgemm.service.jobs import job_runner
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.service.jobs.process import GRACE_SECONDS
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore

REPOSITORY = Path(__file__).parents[3]
# A worker process whose engine hears nothing, and that soon hands its job back, but is not soon ended by force.
DEAF = """
import sys, time
from pathlib import Path
from tests.service.support import ScriptedEngine
from tirgemm.service.jobs import job_runner, process, worker
from tirgemm.tuning_db import Database, JobQueue, SqlStore
process.GRACE_SECONDS, job_runner.HAND_BACK_SECONDS = 600.0, 0.2

class Deaf(ScriptedEngine):
    def tune(self, request, on_event, cancel, between_batches):
        print("tuning", flush=True)
        time.sleep(600)

database = Database.embedded(Path(sys.argv[1]))
engine = Deaf(SqlStore(database))
engine.fallback_gate.set()
runner = worker.Worker(JobQueue(database), engine.store, engine, lease_s=600)
process.on_termination(runner.stop)
runner.run()
"""
# A process that does not end when it is told to.
ENDLESS = """
import time
from tirgemm.service.jobs import process
process.GRACE_SECONDS = 0.2
process.on_termination(lambda: None)
print("working", flush=True)
time.sleep(600)
"""


def test_a_worker_process_that_cannot_stop_hands_its_job_back_before_it_is_ended(tmp_path: Path) -> None:
    with Database.embedded(tmp_path) as database:
        queue = JobQueue(database)
        job_id = queue.submit(JobRequest(Gemm.parse(ODD), CPU))[0].id
        process = subprocess.Popen(
            [sys.executable, "-c", DEAF, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "tuning\n"
        process.send_signal(signal.SIGTERM)
        jobs: list[Job] = []

        def is_handed_back() -> bool:
            jobs.extend(filter(None, [queue.claim("another-host:1:0", [CPU.key], 60.0)]))
            return bool(jobs)

        until(is_handed_back)
        assert process.poll() is None
        assert (jobs[0].id, jobs[0].attempts) == (job_id, 1), "the lease has 600 s left, and a drain is no death"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM, "a second signal ends it at once"
        process.stdout.close()


def test_a_process_that_does_not_end_is_ended_after_its_job_was_to_be_handed_back() -> None:
    assert job_runner.HAND_BACK_SECONDS < GRACE_SECONDS
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM


class DeafEngine(ScriptedEngine):
    """Its search hears no cancel, and stores its kernel when it is through."""

    refused: LeaseLost | None = None

    def tune(
        self,
        request: JobRequest,
        on_event: EventHandler,
        cancel: threading.Event,
        between_batches: Callable[[], None],
    ) -> KernelRecord:
        del on_event, cancel, between_batches
        self.calls.append(("tune", str(request.gemm)))
        self.gate.wait(PATIENCE_S)
        try:
            return kernel_record(self.store, request)
        except LeaseLost as error:
            self.refused = error
            raise


def test_what_is_handed_back_is_resumed_at_once_and_its_late_writes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.HAND_BACK_SECONDS", 0.05)
    with Database.embedded(tmp_path) as database:
        queue, store = JobQueue(database), SqlStore(database)
        job_id = queue.submit(JobRequest(Gemm.parse(ODD), CPU))[0].id
        deaf, other = DeafEngine(store), ScriptedEngine(SqlStore(database))
        for engine in (deaf, other):
            engine.fallback_gate.set()
        stuck = Worker(queue, store, deaf, lease_s=600, name="stuck")
        thread = threading.Thread(target=stuck.run, daemon=True)
        thread.start()
        until(lambda: ("tune", ODD) in deaf.calls)
        stuck.stop()
        other.gate.set()
        free = JobRunner(queue, other.store, other, "free", lease_s=600)
        until(free.run_one)
        deaf.gate.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        job = queue.job(job_id)
        assert job is not None
        assert (job.status, job.attempts, job.owner) == ("done", 1, "free")
        assert deaf.refused is not None
        assert len([kernel for kernel in store.kernels() if kernel.role == "tuned"]) == 1
