"""A worker whose main thread hangs: it loses its job and its place, says where it stands, and ends itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.service.support import CPU, ODD, ScriptedEngine
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import LeaseLost
from tirgemm.events import EventHandler
from tirgemm.gemm import Gemm
from tirgemm.service.commands.worker import HUNG
from tirgemm.service.jobs.heartbeat import CancelEvent, Heartbeat
from tirgemm.service.jobs.worker import Worker
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore

LEASE_SECONDS = 0.5


@dataclass
class HangingEngine(ScriptedEngine):
    """Its first search looks at nothing until ``woken``, then goes on as if nothing had been."""

    stands: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list)

    def tune(
        self, request: JobRequest, on_event: EventHandler, cancel: threading.Event, between_batches: Callable[[], None]
    ) -> KernelRecord:
        self.stands.set()
        self.woken.wait(PATIENCE_S)
        try:
            return super().tune(request, on_event, cancel, between_batches)
        except LeaseLost as error:
            self.errors.append(error)
            raise


class HeartbeatOfTheStuck(Heartbeat):
    """Sees a hang only where ``stands`` says so: a busy machine may let any thread wait for long. ``kept_out`` is set
    when the worker's registration has seen it, and no sooner."""

    def __init__(self, stands: threading.Event, on_hang: Callable[[], None]) -> None:
        super().__init__(0.3, on_hang)
        self._stands = stands
        self.kept_out = threading.Event()

    def check(self) -> bool:
        works = not self._stands.is_set() or super().check()
        if not works and threading.current_thread().name == "registration":
            self.kept_out.set()
        return works


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.embedded(tmp_path) as actual:
        yield actual


def test_a_worker_that_hangs_loses_its_job_to_another_and_writes_nothing_more(
    database: Database, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    alive_file = tmp_path / "alive"
    queue, store, hangs = JobQueue(database), SqlStore(database), threading.Event()
    stuck, sound = HangingEngine(store), ScriptedEngine(store)
    for engine in (stuck, sound):
        engine.gate.set()
        engine.fallback_gate.set()
    job, _ = queue.submit(JobRequest(Gemm.parse(ODD), CPU))
    heartbeat = HeartbeatOfTheStuck(stuck.stands, hangs.set)
    hung = Worker(
        queue,
        store,
        stuck,
        lease_s=LEASE_SECONDS,
        name="hung:1:0",
        new_heartbeat=lambda: heartbeat,
        alive_file=alive_file,
    )
    other = Worker(queue, store, sound, lease_s=600, name="other:1:0")
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in (hung, other)]
    with caplog.at_level(logging.ERROR, logger="tirgemm.worker"):
        threads[0].start()
        assert hangs.wait(PATIENCE_S)
        assert ", in tune\n" in caplog.text, "the log says where it stands"
        # What it saw before the hang it may still be telling.
        assert heartbeat.kept_out.wait(PATIENCE_S)
        until(lambda: not queue.live_workers(1.0))
        alive_file.unlink(missing_ok=True)
        threads[1].start()
        until(lambda: getattr(queue.job(job.id), "status", "") == "done")
    assert not alive_file.exists(), "nothing says that it is alive"
    stuck.woken.set()
    until(lambda: bool(stuck.errors))
    until(alive_file.exists)
    until(lambda: any(worker.name == "hung:1:0" for worker in queue.live_workers(1.0)))
    for worker in (hung, other):
        worker.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [call for call in sound.calls if call[0] == "tune"] == [("tune", ODD)]


def test_a_heartbeat_is_that_of_the_thread_which_works(monkeypatch: pytest.MonkeyPatch) -> None:
    now, hangs = [0.0], list[float]()
    monkeypatch.setattr("tirgemm.service.jobs.heartbeat.time", SimpleNamespace(monotonic=lambda: now[0]))
    heartbeat = Heartbeat(5.0, lambda: hangs.append(now[0]))
    cancel = CancelEvent(heartbeat)
    now[0] = 5.0
    assert heartbeat.check()
    other = threading.Thread(target=cancel.is_set)
    other.start()
    other.join()
    now[0] = 6.0
    assert not heartbeat.check(), "another thread's looks are no sign of life"
    assert not heartbeat.check()
    assert hangs == [6.0], "a hang is told once"
    assert not cancel.wait(0)
    assert heartbeat.check()
    now[0] = 12.0
    assert not heartbeat.check()
    assert hangs == [6.0, 12.0]
    assert not cancel.is_set()
    assert heartbeat.check()


# A worker process whose engine never comes back from its first step; only there is it seen to hang.
STUCK = """
import time
from tirgemm.service.commands import worker
from tirgemm.service.jobs import job_runner
from tirgemm.service.jobs.engine import TuningEngine
from tirgemm.service.jobs.heartbeat import Heartbeat
job_runner.WARM_SECONDS = 0
warming = []
TuningEngine.warm = lambda self: warming.append(self) or time.sleep(600)
check = Heartbeat.check
Heartbeat.check = lambda self: not warming or check(self)
worker._main()
"""


def test_a_worker_process_that_hangs_ends_with_an_exit_code_of_its_own(tmp_path: Path) -> None:
    Database.embedded(tmp_path).close()
    settings = {"TIRGEMM_HANG_SECONDS": "1", "TIRGEMM_LEASE_SECONDS": "0.5", "TIRGEMM_LOCK_DIR": str(tmp_path / "l")}
    command = [sys.executable, "-c", STUCK, "--data", str(tmp_path)]
    ended = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == HUNG
    assert "this worker hangs" in ended.stderr
    assert 'File "<string>"' in ended.stderr, "where it stands"
