"""A failure of a job, or of the database under it: which job ends, and what goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.service.jobs.worker.running_worker import Running, job_of, submit
from tests.service.support import CPU, ODD, ScriptedEngine
from tests.waiting import until
from tirgemm.errors import DoesNotFit, StorageFull, StoreError
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.jobs import full_disk, job_runner
from tirgemm.service.jobs.full_disk import FullDisk
from tirgemm.service.jobs.job_failures import JobFailures
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.tuning.budget import Budget
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest
from tirgemm.tuning_db.queue.batch_totals import BatchBudget
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (DoesNotFit("it needs 2 bytes"), "does_not_fit: it needs 2 bytes"),
        (ZeroDivisionError("by zero"), "internal_error: ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_ends_its_job_with_the_reason_and_no_other(
    queue: JobQueue, engine: ScriptedEngine, error: Exception, recorded: str
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    engine.fail_with = error
    with Running(queue, engine):
        bad = submit(queue)
        until(lambda: job_of(queue, bad).status == "failed")
        assert job_of(queue, bad).error == recorded
        engine.fail_with = None
        good = submit(queue, "131x67x31")
        until(lambda: job_of(queue, good).status == "done")


def test_a_database_that_does_not_answer_sends_the_job_back_and_it_ends_later(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.STORE_PAUSE_SECONDS", 0.05)
    engine.fallback_gate.set()
    engine.gate.set()
    engine.fail_with = StoreError("the database is locked")
    job_id = submit(queue)
    with Running(queue, engine):
        until(lambda: engine.calls.count(("tune", ODD)) > 4)
        assert job_of(queue, job_id).status in ("queued", "running")
        assert job_of(queue, job_id).attempts <= 1, "nobody died"
        engine.fail_with = None
        until(lambda: job_of(queue, job_id).status == "done")


def test_a_full_disk_fails_no_job_and_none_is_claimed_until_it_has_room(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disk, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(full_disk, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(job_runner, "MAX_STORE_FAILURES", 1)
    looked: list[Path] = []

    def is_full(folder: Path) -> bool:
        looked.append(folder)
        return engine.fail_with is not None and len(looked) > 2

    monkeypatch.setattr(full_disk, "is_full", is_full)
    engine.fallback_gate.set()
    engine.gate.set()
    engine.fail_with = StorageFull("no space is left")
    jobs = [submit(queue, f"{m}x67x31") for m in (129, 131, 133)]
    with Running(queue, engine):
        until(lambda: len(looked) > 5)
        assert [job_of(queue, job_id).status for job_id in jobs] == ["queued"] * 3
        assert [call for call in engine.calls if call[0] == "tune"] == [("tune", "129x67x31:f16:nt")] * 3
        assert set(looked) == {queue.db.blobs.folder}
        waits = [event.data["detail"] for event in queue.events(jobs[0]) if event.data.get("phase") == "waiting"]
        assert waits == ["for space on the disk of the service"] * 3
        engine.fail_with = None
        until(lambda: all(job_of(queue, job_id).status == "done" for job_id in jobs))
    assert [job_of(queue, job_id).attempts for job_id in jobs] == [1, 1, 1]


def test_the_pauses_of_a_full_disk_grow_until_a_job_is_done(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    disk, error = FullDisk(database), StorageFull("no space is left")
    now = [0.0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(full_disk, "time", SimpleNamespace(monotonic=lambda: now[0]))
        assert disk.is_over()
        for seconds in (5, 10, 20, 40, 60, 60):
            disk.met(error)
            disk.met(error)
            assert not disk.is_over()
            assert caplog.messages[-1] == f"no job is claimed for {seconds} s: no space is left"
            now[0] += seconds
            assert disk.is_over()
        disk.written()
        disk.met(error)
    assert len(caplog.messages) == 7
    assert "for 5 s" in caplog.messages[-1]


def test_a_claim_that_meets_a_full_disk_begins_a_pause(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[str] = []

    def claim(owner: str, *_: Any, **__: Any) -> Job | None:
        claims.append(owner)
        raise StorageFull("no space is left")

    monkeypatch.setattr(queue, "claim", claim)
    with Running(queue, engine):
        until(lambda: bool(claims))
        time.sleep(1.5)
    assert len(claims) == 1


def submit_refused(queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, most: int) -> str:
    """Submit a job that the database refuses, which is tried again ``most`` times, at once."""
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.STORE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.MAX_STORE_FAILURES", most)
    engine.fallback_gate.set()
    engine.gate.set()
    engine.fail_with = StoreError("the blob is damaged")
    return submit(queue)


def test_a_job_that_the_database_refuses_for_ever_fails(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit_refused(queue, engine, monkeypatch, most=2)
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "failed")
    assert engine.calls.count(("tune", ODD)) == 3
    assert job_of(queue, job_id).error == "store_error: the blob is damaged"


def test_a_job_that_is_put_back_counts_the_database_s_failures_from_none(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit_refused(queue, engine, monkeypatch, most=1)
    runner = JobRunner(queue, engine.store, engine, "one")
    for expected in ("queued", "failed"):
        assert runner.run_one()
        assert job_of(queue, job_id).status == expected
    queue.retry(job_id)
    assert runner.run_one()
    assert job_of(queue, job_id).status == "queued"


def test_what_is_known_of_jobs_is_forgotten_when_they_have_ended(queue: JobQueue) -> None:
    failures = JobFailures()
    running, cancelled, elsewhere, waiting = (submit(queue, f"{m}x67x31") for m in (129, 131, 133, 135))
    for job_id in (running, cancelled, elsewhere, waiting, "deleted"):
        failures.of_store[job_id] = failures.of_device[job_id] = 1
        failures.hopeless.add(job_id)
    queue.cancel(cancelled)
    queue.prioritise(elsewhere, 1)
    for owner in ("another", "one"):
        assert queue.claim(owner, [CPU.key], 60.0)
    assert queue.finish(elsewhere, "another", "done")
    failures.forget_ended(queue)
    assert set(failures.of_store) == set(failures.of_device) == {running, waiting}
    assert failures.hopeless == {waiting}, "the running one's own turn has come"


def test_unverified_builds_are_done_by_any_worker(queue: JobQueue, engine: ScriptedEngine) -> None:
    job = queue.submit(JobRequest(Gemm.parse(ODD), named_device("sm_89"), verify=False))[0]
    verified = queue.submit(JobRequest(Gemm.parse(ODD), named_device("sm_80"), verify=True))[0]
    with Running(queue, engine):
        until(lambda: job_of(queue, job.id).status == "done")
    assert ("cross_compile", ODD) in engine.calls
    assert job_of(queue, verified.id).status == "queued", "a job to be verified waits for a worker that has the device"


def test_the_database_failing_for_a_moment_does_not_end_the_worker(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = queue.claim, iter([StoreError("busy")])

    def claim(owner: str, device_keys: Sequence[str], lease_s: float, **how: Any) -> Job | None:
        for error in failures:
            raise error
        return real(owner, device_keys, lease_s, **how)

    monkeypatch.setattr(queue, "claim", claim)
    engine.fallback_gate.set()
    engine.gate.set()
    job_id = submit(queue)
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "done")


def test_no_job_of_a_batch_is_given_more_than_the_limit_of_its_worker(
    queue: JobQueue, engine: ScriptedEngine, database: Database
) -> None:
    request = JobRequest(Gemm.parse(ODD), CPU)
    BatchTable(database).submit([WantedProblem(request)], asked=1, budget=BatchBudget(4096, 14400.0))
    engine.fallback_gate.set()
    engine.gate.set()
    assert JobRunner(queue, engine.store, engine, "one", limit=Budget(7, 9.0)).run_one()
    done = queue.jobs()[0]
    assert (done.status, done.request.trials, done.request.seconds) == ("done", 7, 9.0)
