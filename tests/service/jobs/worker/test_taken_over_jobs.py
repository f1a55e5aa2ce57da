"""Jobs whose worker stopped, died or lost them, and jobs that a stored kernel ends."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.service.jobs.worker.running_worker import Running, job_of, submit
from tests.service.support import CPU, ODD, ScriptedEngine, kernel_record
from tests.waiting import PATIENCE_S, until
from tirgemm.errors import AlreadyRunning, StoreError
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.jobs.data_lock import ProcessLock
from tirgemm.service.jobs.heartbeat import Heartbeat
from tirgemm.service.jobs.lease import Lease
from tirgemm.service.jobs.worker_names import died_here, owner_name, slot_name
from tirgemm.tuning_db import Database, JobQueue, JobRequest


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


def test_a_worker_forgets_those_of_other_machines_that_have_ended_and_had_no_other_device(
    queue: JobQueue, engine: ScriptedEngine
) -> None:
    for name, devices in (("same", [CPU]), ("other", [CPU, named_device("sm_90a")]), ("alive", [CPU])):
        queue.register_worker(name, devices)
        if name != "alive":
            queue.retire_worker(name)
    with Running(queue, engine) as worker:
        until(lambda: len(queue.live_workers(60)) == 2)
        until(lambda: {ever.name for ever in queue.live_workers(1e9)} == {"other", "alive", worker.name})


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


def test_a_lock_in_a_data_folder_is_its_owner_s_alone(tmp_path: Path) -> None:
    private, old, shared = (tmp_path / name for name in ("private.lock", "old.lock", "shared.lock"))
    old.touch()
    old.chmod(0o666)
    for path in (private, old):
        ProcessLock(path, "the folder").close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ProcessLock(shared, "the machine", for_all=True).close()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o666
