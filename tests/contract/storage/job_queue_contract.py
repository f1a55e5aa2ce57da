"""Contract tests of the job queue on every database; each test class inherits all of it."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any, cast

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, kernel
from tests.contract.storage.queue_fixtures import KEYS, FakeClock, QueueFixtures, claimer, start
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.events import BatchProposed, BuildsCounted, CandidateRecorded, SearchStarted, UnknownEvent
from tirgemm.status import EndedStatus
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore


class JobQueueContract(QueueFixtures):
    """What is claimed, ended and told."""

    # -- claiming ------------------------------------------------------------------------------

    def test_the_oldest_job_of_a_served_device_is_claimed(self, queue: JobQueue) -> None:
        queue.submit(JobRequest(GEMM, OTHER_DEVICE))
        first, _ = queue.submit(JobRequest(GEMM, DEVICE))
        queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        job = self.claimed(queue)
        assert (job.id, job.status, job.owner, job.attempts) == (first.id, "running", "w1", 1)
        assert job.started_at == "2027-01-15T08:00:00.000000Z"
        self.claimed(queue)
        assert queue.claim("w1", KEYS, 5.0) is None
        assert queue.claim("w1", [], 5.0) is None

    def test_only_a_worker_that_builds_unverified_takes_jobs_of_absent_devices(self, queue: JobQueue) -> None:
        queue.submit(JobRequest(GEMM, OTHER_DEVICE))
        job, _ = queue.submit(JobRequest(GEMM, OTHER_DEVICE, verify=False))
        assert queue.claim("w1", KEYS, 5.0) is None
        actual = queue.claim("w1", KEYS, 5.0, unverified=True)
        assert actual is not None
        assert actual.id == job.id
        assert queue.claim("w1", KEYS, 5.0, unverified=True) is None

    def test_a_held_job_is_taken_over_once_its_lease_has_run_out(self, queue: JobQueue, clock: FakeClock) -> None:
        queue.submit(JobRequest(GEMM, DEVICE))
        first = self.claimed(queue, "w1", lease_s=5.0)
        clock.now += 4.5
        assert queue.claim("w2", KEYS, 5.0) is None
        assert queue.heartbeat(first.id, "w1", 5.0) == "ok"
        clock.now += 4.5
        assert queue.claim("w2", KEYS, 5.0) is None
        clock.now += 0.5
        second = self.claimed(queue, "w2")
        assert (second.id, second.owner, second.attempts) == (first.id, "w2", 2)
        assert second.started_at == first.started_at
        assert queue.heartbeat(first.id, "w1", 5.0) == "lost"
        assert not queue.finish(first.id, "w1", "done")
        assert queue.finish(first.id, "w2", "done")

    def test_a_late_heartbeat_keeps_a_job_that_nobody_took(self, queue: JobQueue, clock: FakeClock) -> None:
        queue.submit(JobRequest(GEMM, DEVICE))
        job = self.claimed(queue)
        clock.now += 60
        assert queue.heartbeat(job.id, "w1", 5.0) == "ok"
        assert queue.claim("w2", KEYS, 5.0) is None

    def test_threads_that_claim_together_get_different_jobs(self, queue: JobQueue) -> None:
        wanted = {queue.submit(JobRequest(GEMM.with_(m=m), DEVICE))[0].id for m in range(1, 13)}
        claimed: list[str] = []
        together = threading.Barrier(6)

        def claim(owner: str) -> None:
            for _ in range(2):
                together.wait(PATIENCE_S)
                job = queue.claim(owner, KEYS, 60.0)
                claimed.append("none" if job is None else job.id)

        threads = [threading.Thread(target=claim, args=(f"w{number}",)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(claimed) == sorted(wanted)

    def test_a_job_is_claimed_by_one_of_several_processes(self, database: Database, queue: JobQueue) -> None:
        wanted = {queue.submit(JobRequest(GEMM.with_(m=m), DEVICE))[0].id for m in range(1, 16)}
        processes = [claimer(database, f"w{number}") for number in range(3)]
        for process in processes:
            start(process)
        printed = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        assert sorted("".join(printed).split()) == sorted(wanted)
        assert all(process.returncode == 0 for process in processes)

    def test_the_job_of_a_killed_process_is_claimed_again(self, database: Database) -> None:
        queue, later = JobQueue(database), JobQueue(database, lambda: time.time() + 3600)
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        process = claimer(database, "killed", lease_s=600.0, hold="hold")
        start(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == job.id
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
        assert queue.claim("next", KEYS, 5.0) is None
        actual = later.claim("next", KEYS, 5.0)
        assert actual is not None
        assert (actual.id, actual.owner, actual.attempts) == (job.id, "next", 2)

    # -- ending --------------------------------------------------------------------------------

    def test_a_finished_job_names_its_kernel(self, database: Database, queue: JobQueue, clock: FakeClock) -> None:
        stored = SqlStore(database).put_kernel(kernel())
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        clock.now += 61.5
        assert queue.finish(job.id, "w1", "done", kernel_id=stored.id)
        actual = queue.job(job.id)
        assert actual is not None
        assert (actual.status, actual.kernel_id, actual.ended) == ("done", stored.id, True)
        assert actual.finished_at == "2027-01-15T08:01:01.500000Z"
        assert queue.claim("w2", KEYS, 5.0) is None

    @pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
    def test_how_the_builds_stood_is_forgotten_with_the_end(self, queue: JobQueue, status: EndedStatus) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        other, _ = queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        self.claimed(queue)
        for told in (SearchStarted(), BuildsCounted(queued=5), BatchProposed(), BuildsCounted()):
            queue.add_event(job.id, told)
            queue.add_event(other.id, told)
        queue.finish(job.id, "of another worker", status)
        assert len(queue.events(job.id)) == 4
        if status == "cancelled":
            queue.cancel(job.id)
        queue.finish(job.id, "w1", status)
        assert [event.kind for event in queue.events(job.id)] == ["started", "batch"]
        assert len(queue.events(other.id)) == 4

    def test_how_the_builds_stand_is_not_kept_of_a_job_that_was_cancelled(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        queue.cancel(job.id)
        assert queue.add_event(job.id, BuildsCounted(queued=5), "w1") == 0
        assert queue.add_event(job.id, BatchProposed(), "w1") > 0, "what was done by then is kept"
        assert [event.kind for event in queue.events(job.id)] == ["batch"]

    @pytest.mark.parametrize("how", ["queued", "of a dead worker", "set aside"])
    def test_how_the_builds_stood_is_forgotten_of_a_job_that_ends_without_a_worker(
        self, queue: JobQueue, how: str
    ) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        for told in (SearchStarted(), BuildsCounted(queued=5)):
            queue.add_event(job.id, told)
        for death in range({"queued": 0, "of a dead worker": 1, "set aside": 3}[how]):
            self.claimed(queue)
            assert len(queue.events(job.id)) == 2
            if how == "set aside" or death:
                queue.declare_dead("w1")
        if how != "set aside":
            queue.cancel(job.id)
        ended = queue.job(job.id)
        assert ended is not None
        assert ended.status == ("failed" if how == "set aside" else "cancelled")
        assert [event.kind for event in queue.events(job.id)] == ["started"]

    def test_a_failed_job_says_why(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        assert queue.finish(job.id, "w1", "failed", error="no\0 luck")
        actual = queue.job(job.id)
        assert actual is not None
        assert (actual.status, actual.error) == ("failed", "no� luck")

    def test_a_job_ends_once_and_only_by_its_owner(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        assert not queue.finish(job.id, "w1", "done")
        self.claimed(queue)
        assert not queue.finish(job.id, "w2", "done")
        assert queue.finish(job.id, "w1", "done")
        assert not queue.finish(job.id, "w1", "failed")
        with pytest.raises(InvalidRequest, match="running"):
            queue.finish(job.id, "w1", cast(Any, "running"))

    def test_a_waiting_job_is_cancelled_for_good(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        cancelled = queue.cancel(job.id)
        assert cancelled.status == "cancelled"
        assert cancelled.finished_at is not None
        assert queue.claim("w1", KEYS, 5.0) is None
        again, created = queue.submit(JobRequest(GEMM, DEVICE))
        assert created
        assert again.id != job.id

    def test_the_owner_learns_that_its_job_was_cancelled(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        queue.cancel(job.id)
        assert queue.heartbeat(job.id, "w1", 5.0) == "cancelled"
        assert not queue.finish(job.id, "w1", "done")
        actual = queue.job(job.id)
        assert actual is not None
        assert actual.status == "cancelled"

    def test_cancelling_an_ended_job_changes_nothing(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        queue.finish(job.id, "w1", "done")
        assert queue.cancel(job.id) == queue.job(job.id)
        assert queue.cancel(job.id).status == "done"

    def test_an_unknown_job_is_an_error(self, queue: JobQueue) -> None:
        assert queue.heartbeat("nope", "w1", 5.0) == "lost"
        for act in (
            lambda: queue.cancel("nope"),
            lambda: queue.add_event("nope", BatchProposed()),
            lambda: queue.set_fallback("nope", "k1"),
        ):
            with pytest.raises(StoreError, match="nope"):
                act()

    def test_a_released_job_is_claimed_at_once(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue, "w1")
        assert not queue.release(job.id, "w2")
        assert queue.release(job.id, "w1")
        assert queue.heartbeat(job.id, "w1", 5.0) == "lost"
        assert queue.submit(JobRequest(GEMM, DEVICE))[1] is False
        again = self.claimed(queue, "w2")
        assert (again.id, again.attempts) == (job.id, 1), "what was given back in good order is no attempt"

    # -- events --------------------------------------------------------------------------------

    def test_events_come_in_order_with_growing_ids_and_from_behind_one(self, queue: JobQueue) -> None:
        first, _ = queue.submit(JobRequest(GEMM, DEVICE))
        other, _ = queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        ids = []
        for number in range(5):
            ids.append(
                queue.add_event(
                    first.id, UnknownEvent(name="batch", data={"number": number, "rate": float("inf"), "size": (1, 2)})
                )
            )
            queue.add_event(other.id, SearchStarted())
        assert ids == sorted(set(ids))
        events = queue.events(first.id)
        assert [event.id for event in events] == ids
        assert events[3].data == {"number": 3, "rate": None, "size": [1, 2]}
        assert events[3].kind == "batch"
        assert queue.events(first.id, after=ids[2]) == events[3:]
        assert queue.events(first.id, after=ids[0], limit=2) == events[1:3]
        assert queue.events(first.id, after=ids[-1]) == []
        assert queue.events("nope") == []

    def test_a_reader_that_follows_events_of_many_writers_misses_none(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))

        def write() -> None:
            for number in range(15):
                queue.add_event(job.id, CandidateRecorded(trials=number))

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        seen: list[int] = []
        while any(thread.is_alive() for thread in threads):
            seen += [event.id for event in queue.events(job.id, after=seen[-1] if seen else 0)]
        for thread in threads:
            thread.join()
        seen += [event.id for event in queue.events(job.id, after=seen[-1] if seen else 0)]
        assert seen == [event.id for event in queue.events(job.id)]
        assert len(seen) == 45

    # -- workers -------------------------------------------------------------------------------

    def test_workers_are_live_while_they_are_seen(self, queue: JobQueue, clock: FakeClock) -> None:
        queue.register_worker("a", [DEVICE])
        clock.now += 8
        queue.register_worker("b", [DEVICE, OTHER_DEVICE])
        assert [worker.name for worker in queue.live_workers(10)] == ["a", "b"]
        clock.now += 5
        alive = queue.live_workers(10)
        assert [(worker.name, worker.devices) for worker in alive] == [("b", (DEVICE, OTHER_DEVICE))]
        assert alive[0].seen_at == "2027-01-15T08:00:08.000000Z"
        assert alive[0].measuring == (0.0, 0.0)
        queue.register_worker("a", [OTHER_DEVICE], measuring=[2.5])
        assert queue.live_workers(10)[0].devices == (OTHER_DEVICE,)
        assert queue.live_workers(10)[0].measuring == (2.5,)
        queue.retire_worker("a")
        assert [worker.name for worker in queue.live_workers(3600.0)] == ["b"]
        assert [worker.devices for worker in queue.live_workers(1e9)] == [(OTHER_DEVICE,), (DEVICE, OTHER_DEVICE)]
        queue.remove_worker("a")
        assert [worker.name for worker in queue.live_workers(1e9)] == ["b"]

    def test_a_worker_says_why_a_device_of_it_cannot_be_used(self, queue: JobQueue) -> None:
        queue.register_worker("a", [DEVICE, OTHER_DEVICE], faults=["", "it cannot be opened"])
        (worker,) = queue.live_workers(10)
        assert worker.devices == (DEVICE, OTHER_DEVICE)
        assert worker.unusable == [(OTHER_DEVICE, "it cannot be opened")]
        assert worker.usable_keys == {DEVICE.key}
        queue.register_worker("a", [DEVICE, OTHER_DEVICE])
        (worker,) = queue.live_workers(10)
        assert worker.unusable == []
        assert worker.usable_keys == {DEVICE.key, OTHER_DEVICE.key}
