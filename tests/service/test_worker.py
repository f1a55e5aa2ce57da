"""The worker: order of work, interruption, and whose job it is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.support import CPU, ODD, ScriptedEngine, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import AlreadyRunning, BuildFailed, DoesNotFit, StorageFull, StoreError
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.http.state import open_database
from tirgemm.service.jobs import job_runner, new_job_watcher
from tirgemm.service.jobs.data_lock import ProcessLock
from tirgemm.service.jobs.heartbeat import Heartbeat
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.service.jobs.lease import Lease
from tirgemm.service.jobs.worker import Worker
from tirgemm.service.jobs.worker_names import died_here, owner_name, slot_name
from tirgemm.service.settings import Settings
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.queue.batch_totals import BatchBudget
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(Settings.load(data=tmp_path)) as actual:
        yield actual


@pytest.fixture
def engine(database: Database) -> ScriptedEngine:
    return ScriptedEngine(SqlStore(database))


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


def test_fallbacks_of_waiting_jobs_are_built_between_the_batches_of_the_running_one(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine):
        first = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        second = submit(queue, "131x67x31")
        until(lambda: job_of(queue, second).fallback_id is not None)
        assert job_of(queue, second).status == "queued"
        assert job_of(queue, first).status == "running"
        engine.gate.set()
        until(lambda: job_of(queue, second).status == "done")
    assert [event.kind for event in queue.events(second)].count("fallback") == 1
    assert engine.calls.count(("fallback", "131x67x31:f16:nt")) == 1


def test_an_idle_worker_hears_of_a_job_before_it_would_look_for_what_was_put_back(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_job_watcher, "POLL_SECONDS", 10 * PATIENCE_S)
    engine.fallback_gate.set()
    looked = threading.Event()
    newest = JobQueue.newest

    def seen(asked: JobQueue) -> Any:
        looked.set()
        return newest(asked)

    monkeypatch.setattr(JobQueue, "newest", seen)
    with Running(queue, engine):
        assert looked.wait(PATIENCE_S), "it waits"
        submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        engine.gate.set()


def test_an_engine_is_told_of_the_jobs_that_wait_in_their_order(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.fallback_gate.set()
    monkeypatch.setattr(job_runner, "FALLBACK_SLICE_SECONDS", 0.0)
    told: list[tuple[list[str], list[str]]] = []

    def tune(
        request: JobRequest, _on_event: object, _cancel: object, between_batches: Callable[[], None]
    ) -> KernelRecord:
        submit(queue, "131x67x31")
        last = submit(queue, "133x67x31", priority=1)
        for _ in range(2):
            between_batches()
            told.append((engine.prepared, engine.bare))
        queue.cancel(last)
        between_batches()
        told.append((engine.prepared, engine.bare))
        return kernel_record(engine.store, request, "tuned")

    monkeypatch.setattr(engine, "tune", tune)
    submit(queue)
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    first, second = "133x67x31:f16:nt", "131x67x31:f16:nt"
    assert told == [([first, second], [first, second]), ([first, second], [second]), ([second], [])]


def test_an_engine_is_warmed_once_and_not_where_a_job_comes_first(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "WARM_SECONDS", 0.3)
    busy = ScriptedEngine(engine.store)
    for each in (engine, busy):
        each.gate.set()
        each.fallback_gate.set()
    first = submit(queue)
    with Running(queue, busy):
        until(lambda: job_of(queue, first).status == "done")
        time.sleep(0.5)
    assert ("warm", "") not in busy.calls
    with Running(queue, engine):
        until(lambda: ("warm", "") in engine.calls)
        time.sleep(0.3)
    assert engine.calls == [("warm", "")]


def test_the_engine_is_warmed_behind_a_job_that_was_cancelled(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    cancelled = submit(queue)
    with Running(queue, engine):
        until(lambda: ("tune", ODD) in engine.calls)
        queue.cancel(cancelled)
        until(lambda: engine.calls[-1] == ("warm", ""))


def test_a_job_that_shipped_records_answer_ends_without_a_search(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shipped(request: JobRequest, _cancel: threading.Event, _on_event: object) -> object:
        return kernel_record(engine.store, replace(request, trials=32), "tuned", search={"ended": "shipped"})

    monkeypatch.setattr(engine, "fallback", shipped)
    with Running(queue, engine):
        answered = submit(queue)
        until(lambda: job_of(queue, answered).status == "done")
        assert job_of(queue, answered).kernel_id == job_of(queue, answered).fallback_id
        larger = submit(queue, "131x67x31", trials=1000)
        until(lambda: ("tune", "131x67x31:f16:nt") in engine.calls)
        waiting = submit(queue, "133x67x31")
        until(lambda: job_of(queue, waiting).fallback_id is not None)
        engine.gate.set()
        until(lambda: job_of(queue, waiting).status == "done")
        assert job_of(queue, larger).kernel_id != job_of(queue, larger).fallback_id
        assert job_of(queue, waiting).kernel_id == job_of(queue, waiting).fallback_id
    assert [call for call in engine.calls if call[0] == "tune"] == [("tune", "131x67x31:f16:nt")]


@pytest.mark.parametrize("built", [(), (105,), (103, 105, 107)])
def test_the_device_waits_for_the_build_of_one_fallback_at_most_between_two_batches(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, built: Sequence[int]
) -> None:
    engine.fallback_gate.set()
    told: list[list[int | Any]] = []
    made: list[list[int]] = []

    def prepare(_waiting: object, bare: Sequence[JobRequest]) -> list[JobRequest]:
        told.append([request.gemm.m for request in bare])
        return [request for request in bare if request.gemm.m in built]

    def tune(
        request: JobRequest, _on_event: object, _cancel: object, between_batches: Callable[[], None]
    ) -> KernelRecord:
        for m in (101, 103, 105, 107):
            submit(queue, f"{m}x67x31")
        for _ in range(2):
            told.clear()
            before = len(engine.calls)
            between_batches()
            made.append([int(gemm.split("x")[0]) for _, gemm in engine.calls[before:]])
        return kernel_record(engine.store, request, "tuned")

    monkeypatch.setattr(engine, "prepare", prepare)
    monkeypatch.setattr(engine, "tune", tune)
    submit(queue)
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    left = [m for m in (101, 103, 105, 107) if m not in (built or (101,))]
    assert made == [list(built) or [101], left[:1]], "what is built, or else the first alone"
    assert told == [left, left[1:]], "the engine is told of what comes next before each"


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_without_a_fallback_is_prepared_beside_it_where_others_wait(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    told: list[list[str]] = []

    def prepare(waiting: Sequence[JobRequest], bare: Sequence[JobRequest]) -> list[JobRequest]:
        told.extend([str(one.gemm) for one in requests] for requests in (waiting, bare))
        return []

    monkeypatch.setattr(engine, "prepare", prepare)
    submit(queue)
    if waits:
        submit(queue, "131x67x31")
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    assert told[0] == told[1] == ([ODD, "131x67x31:f16:nt"] if waits else []), "its own comes first"


@pytest.mark.parametrize("broken", ["prepare", "fallback"])
def test_what_no_engine_may_do_with_a_job_that_waits_costs_the_running_one_nothing(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    fallback = engine.fallback

    def prepare(_waiting: object, bare: Sequence[JobRequest]) -> list[JobRequest]:
        if broken == "prepare":
            raise ZeroDivisionError("of a job that waits")
        engine.bare = [str(request.gemm) for request in bare]
        return []

    def fallback_of(request: JobRequest, cancel: threading.Event, _on_event: object = None) -> KernelRecord:
        if broken == "fallback" and request.gemm.m == 131:
            raise ZeroDivisionError("of a job that waits")
        return fallback(request, cancel)

    monkeypatch.setattr(engine, "prepare", prepare)
    monkeypatch.setattr(engine, "fallback", fallback_of)
    running, waiting = submit(queue), submit(queue, "131x67x31")
    assert JobRunner(queue, engine.store, engine, "one").run_one()
    assert job_of(queue, running).status == "done"
    assert (job_of(queue, waiting).status, job_of(queue, waiting).owner) == ("queued", None)
    assert engine.bare == [], "what cannot be built is not prepared either"
    assert engine.held == []


def test_a_fallback_that_cannot_be_built_is_tried_once_and_stops_nobody_else(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.fallback_gate.set()
    tried: list[str] = []
    real = engine.fallback

    def fallback(request: JobRequest, cancel: threading.Event, _on_event: object) -> object:
        tried.append(str(request.gemm))
        if request.gemm.m == 131:
            raise BuildFailed("no default of this problem builds")
        return real(request, cancel)

    monkeypatch.setattr(engine, "fallback", fallback)
    with Running(queue, engine):
        submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        bad, good = submit(queue, "131x67x31"), submit(queue, "133x67x31")
        until(lambda: job_of(queue, good).fallback_id is not None)
        assert tried.count("131x67x31:f16:nt") == 1
        engine.gate.set()
        until(lambda: job_of(queue, good).status == "done")
        assert job_of(queue, bad).status == "failed"
        assert job_of(queue, bad).error == "build_failed: no default of this problem builds"


def test_a_burst_of_requests_takes_a_slice_of_each_batch_and_no_more(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.FALLBACK_SLICE_SECONDS", 0.0)
    engine.fallback_gate.set()
    batches: list[int] = []

    def tune(
        request: JobRequest, _on_event: object, cancel: threading.Event, between_batches: Callable[[], None]
    ) -> KernelRecord:
        for _ in range(4):
            before = len(engine.calls)
            between_batches()
            batches.append(len(engine.calls) - before)
        assert not cancel.is_set()
        return kernel_record(engine.store, request, "tuned")

    monkeypatch.setattr(engine, "tune", tune)
    ids = [submit(queue, f"{m}x67x31") for m in range(101, 121)]
    with Running(queue, engine):
        until(lambda: job_of(queue, ids[-1]).status == "done")
    assert set(batches) == {0, 1}, "one fallback a batch, where one takes the whole slice"
    assert all(engine.calls.count(("fallback", f"{m}x67x31:f16:nt")) == 1 for m in range(101, 121))


@pytest.mark.parametrize("which", ["running", "waiting"])
def test_a_cancel_is_heard_while_the_fallback_of_a_waiting_job_is_built(
    queue: JobQueue, engine: ScriptedEngine, which: str
) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine):
        running = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        engine.fallback_gate.clear()
        waiting = submit(queue, "131x67x31")
        until(lambda: job_of(queue, waiting).owner is not None)
        assert job_of(queue, waiting).status == "queued"
        queue.cancel(running if which == "running" else waiting)
        if which == "running":
            until(lambda: job_of(queue, waiting).status == "running")
            assert job_of(queue, waiting).attempts == 1
        else:
            later = submit(queue, "133x67x31")
            until(lambda: job_of(queue, later).owner is not None)
            engine.fallback_gate.set()
            until(lambda: job_of(queue, later).fallback_id is not None)
            assert job_of(queue, running).status == "running"
        assert job_of(queue, waiting).fallback_id is None


def test_two_workers_never_build_one_fallback_twice(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine, "one"), Running(queue, engine, "two"):
        first, second = submit(queue), submit(queue, "131x67x31")
        until(lambda: {job_of(queue, first).status, job_of(queue, second).status} == {"running"})
        waiting = [submit(queue, f"{m}x67x31") for m in range(133, 145)]
        until(lambda: all(job_of(queue, job_id).fallback_id for job_id in waiting))
        engine.gate.set()
        until(lambda: all(job_of(queue, job_id).status == "done" for job_id in waiting))
    built = [call for call in engine.calls if call[0] == "fallback"]
    assert len(built) == len(set(built)) == 14


def test_a_stopped_worker_gives_its_job_back_at_once(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine) as worker:
        job_id = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        worker.stop()
        until(lambda: job_of(queue, job_id).status == "queued")
    assert queue.live_workers(60) == []
    engine.gate.set()
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "done")
    assert job_of(queue, job_id).attempts == 1, "an orderly end is no attempt"
    assert engine.calls.count(("fallback", ODD)) == 1, "the fallback of the first attempt is still there"


def test_a_job_whose_worker_died_here_is_taken_over_without_waiting_for_its_lease(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    job_id = submit(queue)
    assert queue.claim(owner_name(pid=int(gone.stdout)), [CPU.key], lease_s=3600)
    engine.fallback_gate.set()
    engine.gate.set()
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "done")


def test_only_dead_processes_of_this_machine_are_dead() -> None:
    me = owner_name()
    assert not died_here(me, me)
    assert not died_here(slot_name(me, 1), me), "another device of this process holds it"
    assert died_here(owner_name(), me), "our own pid under another nonce is a process before us"
    assert died_here(slot_name(owner_name(), 1), me)
    assert not died_here(owner_name(pid=1), me)
    assert not died_here("another-host:999999999:0", me)
    assert died_here(owner_name(pid=4_194_304), me), "a pid above the kernel's limit"
    assert not died_here("nonsense", me)
    assert not died_here(owner_name(pid=10**30), me)


def test_a_job_that_was_taken_over_is_left_alone(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    # To another host the lease has run out: it takes the job over in the transaction in which it sees that, as no
    # release and claim of the two of them would, between which this worker may claim the job again.
    elsewhere = JobQueue(queue.db, lambda: time.time() + 3600)
    with Running(queue, engine):
        job_id = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        assert elsewhere.claim("another-host:1:0", [CPU.key], 60)
        submit(queue, "131x67x31")
        # It runs one job at a time: this one's turn comes when it has left the other.
        until(lambda: ("tune", "131x67x31:f16:nt") in engine.calls)
        assert (job_of(queue, job_id).owner, job_of(queue, job_id).status) == ("another-host:1:0", "running")
    assert engine.calls.count(("tune", ODD)) == 1


def test_a_kernel_that_was_stored_just_before_a_kill_ends_the_job_without_a_search(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    kernel = kernel_record(engine.store, JobRequest(Gemm.parse(ODD), CPU))
    job_id = submit(queue)
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "done")
    assert job_of(queue, job_id).kernel_id == kernel.id
    assert ("tune", ODD) not in engine.calls


def test_a_kernel_that_spent_less_than_the_job_asks_for_does_not_end_it(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    small = submit(queue, trials=2)
    large = submit(queue, trials=500)
    with Running(queue, engine):
        until(lambda: job_of(queue, large).status == "done")
    assert job_of(queue, small).kernel_id != job_of(queue, large).kernel_id
    assert engine.calls.count(("tune", ODD)) == 2


def test_the_kernel_that_a_job_is_to_improve_does_not_end_it_however_much_was_spent(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    engine.gate.set()
    known = kernel_record(engine.store, JobRequest(Gemm.parse(ODD), CPU, trials=999))
    job_id = submit(queue, fallback_id=known.id, trials=10)
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "done")
    assert engine.calls.count(("tune", ODD)) == 1
    assert ("fallback", ODD) not in engine.calls, "the known kernel is the fallback"
    # Killed now, after storing and before finishing, the job ends with what it had stored.
    again = submit(queue, fallback_id=known.id, trials=10)
    with Running(queue, engine):
        until(lambda: job_of(queue, again).status == "done")
    assert engine.calls.count(("tune", ODD)) == 1
    assert job_of(queue, again).kernel_id == job_of(queue, job_id).kernel_id


def test_a_job_whose_fallback_was_deleted_goes_on(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    with Running(queue, engine):
        job_id = submit(queue)
        until(lambda: ("tune", ODD) in engine.calls)
        assert engine.store.delete_kernel(str(job_of(queue, job_id).fallback_id))
        assert job_of(queue, job_id).fallback_id is None
        engine.gate.set()
        until(lambda: job_of(queue, job_id).status == "done")
    assert job_of(queue, job_id).kernel_id


def test_a_job_that_kills_every_worker_is_given_up(queue: JobQueue, engine: ScriptedEngine) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    deadly, harmless = submit(queue), submit(queue, "131x67x31")
    for _ in range(3):
        assert queue.claim(owner_name(pid=4_194_304), [CPU.key], lease_s=0)
    with Running(queue, engine):
        until(lambda: job_of(queue, harmless).status == "done")
    assert job_of(queue, deadly).status == "failed"
    assert "set aside" in str(job_of(queue, deadly).error)
    assert ("tune", ODD) not in engine.calls


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (StorageFull("no space is left"), "storage_full: no space is left"),
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


def test_a_job_that_the_database_refuses_for_ever_fails(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.STORE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("tirgemm.service.jobs.job_runner.MAX_STORE_FAILURES", 2)
    engine.fallback_gate.set()
    engine.gate.set()
    engine.fail_with = StoreError("the blob is damaged")
    job_id = submit(queue)
    with Running(queue, engine):
        until(lambda: job_of(queue, job_id).status == "failed")
    assert engine.calls.count(("tune", ODD)) == 3
    assert job_of(queue, job_id).error == "store_error: the blob is damaged"


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


def test_a_lease_outlives_its_length_while_it_is_held_and_tells_a_cancellation(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, renewed_at = [1000.0], list[float]()
    queue = JobQueue(database, lambda: now[0])
    job_id = submit(queue)
    assert queue.claim("me:1:0", [CPU.key], 0.5)
    renew = queue.heartbeat

    def heartbeat(job_id: str, owner: str, lease_s: float) -> object:
        at = now[0]
        state = renew(job_id, owner, lease_s)
        renewed_at.append(at)
        return state

    monkeypatch.setattr(queue, "heartbeat", heartbeat)
    with Lease(queue, job_id, "me:1:0", 0.5, Heartbeat()) as lease:
        now[0] += 0.4
        until(lambda: now[0] in renewed_at)
        now[0] += 0.4
        assert queue.claim("other:1:0", [CPU.key], 0.5) is None
        assert not lease.cancel.is_set()
        queue.cancel(job_id)
        assert lease.cancel.wait(PATIENCE_S)
        assert lease.reason == "cancelled"


def test_a_lock_is_held_by_one_and_says_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    script = (
        "import sys, time; from pathlib import Path; from tirgemm.service.jobs.data_lock import ProcessLock; "
        "lock = ProcessLock(Path(sys.argv[1]), 'it'); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning, match=rf"the folder is in use by process {holder.pid}"):
            ProcessLock(path, "the folder")
        holder.kill()
    with ProcessLock(path, "the folder", wait_s=5):
        pass


def test_a_lock_in_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        ProcessLock(tmp_path / "file" / "x.lock", "the folder")
