"""Contract tests of leases on jobs, on every database: fallbacks, deaths, fences, clocks, and the queue's bound."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, candidate, kernel, key, samples
from tests.contract.storage.queue_fixtures import KEYS, FakeClock, QueueFixtures
from tirgemm.errors import LeaseLost, QueueFull
from tirgemm.events import BatchProposed
from tirgemm.tuning.records import Status
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.queue.batches import BatchTable, WantedProblem
from tirgemm.tuning_db.queue.job_leases import MAX_DEATHS


class JobLeaseContract(QueueFixtures):
    """Who may build, run and record."""

    # -- fallbacks -----------------------------------------------------------------------------

    def test_a_fallback_is_built_once_for_a_job_that_waits_for_it(self, database: Database, queue: JobQueue) -> None:
        stored = SqlStore(database).put_kernel(kernel("fallback"))
        first, second, third = (queue.submit(JobRequest(GEMM.with_(m=m), DEVICE))[0] for m in (3, 5, 7))
        queue.submit(JobRequest(GEMM, OTHER_DEVICE))
        self.claimed(queue)
        held = queue.claim_fallback("w1", KEYS, 5.0)
        assert held is not None
        assert (held.id, held.status, held.attempts) == (second.id, "queued", 0)
        other = queue.claim_fallback("w2", KEYS, 5.0)
        assert other is not None
        assert other.id == third.id, "nobody builds the fallback that another one builds"
        assert queue.claim("w3", KEYS, 5.0) is None, "nor claims its job meanwhile"
        assert queue.claim_fallback("w3", KEYS, 5.0) is None
        queue.set_fallback(second.id, stored.id)
        assert queue.release(second.id, "w1")
        assert queue.release(third.id, "w2")
        assert queue.claim_fallback("w3", KEYS, 5.0, skip=[third.id]) is None
        for others in ([], [first.id, second.id]):
            assert queue.claim_fallback("w3", KEYS, 5.0, only=others) is None
        again = queue.claim_fallback("w3", KEYS, 5.0, only=[first.id, third.id])
        assert again is not None
        assert again.id == third.id
        assert self.claimed(queue, "w4").id == second.id
        queue.set_fallback(first.id, stored.id)
        job = queue.job(first.id)
        assert job is not None
        assert job.fallback_id == stored.id

    def test_who_builds_a_fallback_learns_that_its_job_was_cancelled(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        assert queue.claim_fallback("w1", KEYS, 5.0)
        assert queue.heartbeat(job.id, "w1", 5.0) == "ok"
        assert not queue.finish(job.id, "w1", "done"), "it does not run"
        queue.cancel(job.id)
        assert queue.heartbeat(job.id, "w1", 5.0) == "cancelled"
        assert not queue.release(job.id, "w1")

    def test_a_fallback_whose_builder_is_silent_is_another_one_s(self, queue: JobQueue, clock: FakeClock) -> None:
        queue.submit(JobRequest(GEMM, DEVICE))
        assert queue.claim_fallback("w1", KEYS, 5.0)
        clock.now += 5
        assert self.claimed(queue, "w2").attempts == 2

    # -- deaths --------------------------------------------------------------------------------

    def test_a_job_that_kills_three_workers_is_set_aside_and_blocks_nobody(
        self, queue: JobQueue, clock: FakeClock
    ) -> None:
        deadly, _ = queue.submit(JobRequest(GEMM, DEVICE))
        harmless, _ = queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        for number in (1, 2, 3):
            job = self.claimed(queue, f"w{number}")
            assert (job.id, job.attempts) == (deadly.id, number)
            assert queue.release(job.id, f"w{number}"), "an orderly end between two deaths"
            assert self.claimed(queue, f"w{number}").attempts == number
            clock.now += 5
        assert self.claimed(queue, "w4").id == harmless.id
        actual = queue.job(deadly.id)
        assert actual is not None
        assert (actual.status, actual.attempts, actual.owner) == ("failed", 3, None)
        assert str(actual.error).startswith("workers_died: 3 workers in a row died of this job, the last of them w3")
        again, created = queue.submit(JobRequest(GEMM, DEVICE))
        assert (created, again.id != deadly.id) == (True, True)

    def test_deaths_between_which_something_was_measured_do_not_add_up(
        self, database: Database, queue: JobQueue, clock: FakeClock
    ) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        store = SqlStore(database)
        for number in range(1, 7):
            actual = self.claimed(queue, f"w{number}")
            assert (actual.id, actual.attempts) == (job.id, 1 if number == 1 else 2)
            with store.fenced(job.id, f"w{number}"):
                store.add_candidate(candidate(number))
            clock.now += 5
        assert self.claimed(queue, "w7").attempts == 2
        failing = replace(candidate(8), status=Status.CRASHED, sample_sets=())
        with store.fenced(job.id, "w7"):
            store.add_candidate(failing)
        assert queue.job(job.id) is not None
        clock.now += 5
        assert self.claimed(queue, "w8").attempts == 3, "a candidate that failed is no progress"

    def test_a_death_counts_against_the_job_whose_fallback_was_built_not_the_one_that_ran(
        self, queue: JobQueue
    ) -> None:
        running, _ = queue.submit(JobRequest(GEMM, DEVICE))
        deadly, _ = queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        for number in (1, 2, 3):
            assert self.claimed(queue, f"w{number}").id == running.id
            assert queue.claim_fallback(f"w{number}", KEYS, 5.0)
            assert queue.owners() == [f"w{number}"]
            assert sorted(queue.declare_dead(f"w{number}")) == sorted([running.id, deadly.id])
        actual = [queue.job(job.id) for job in (running, deadly)]
        assert [(job.status, job.attempts) for job in actual if job] == [("queued", 0), ("failed", 3)]
        assert queue.declare_dead("w3") == []

    @pytest.mark.parametrize("left", ["fallback", "finished"])
    def test_a_live_worker_that_could_not_put_a_job_back_loses_that_job_alone(
        self, queue: JobQueue, clock: FakeClock, left: str
    ) -> None:
        queue.submit(JobRequest(GEMM, DEVICE))
        queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        lost, kept = self.claimed(queue), queue.claim_fallback("w1", KEYS, 5.0)
        assert kept is not None
        if left == "fallback":
            lost, kept = kept, lost
        for _ in range(34):
            clock.now += 1
            assert queue.heartbeat(kept.id, "w1", 5.0) == "ok"
            assert queue.claim("w2", KEYS, 5.0) is None, "its worker is alive"
        clock.now += 1
        again = self.claimed(queue, "w2")
        assert (again.id, again.attempts) == (lost.id, 1), "half a minute after its lease, and nobody died of it"
        assert queue.heartbeat(kept.id, "w1", 5.0) == "ok", "it is still the first one's"
        clock.now += 4
        assert queue.heartbeat(again.id, "w2", 5.0) == "ok"
        clock.now += 1
        assert self.claimed(queue, "w3").id == kept.id, "a dead worker's job is free at once"

    # -- fences --------------------------------------------------------------------------------

    def test_a_worker_that_lost_its_lease_writes_nothing_more(
        self, database: Database, queue: JobQueue, clock: FakeClock
    ) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        store = SqlStore(database)
        self.claimed(queue, "slow")
        with store.fenced(job.id, "slow"):
            store.add_candidate(candidate(1))
            number = store.begin_attempt(key(2))
            queue.add_event(job.id, BatchProposed(), "slow")
            clock.now += 5
            self.claimed(queue, "next")
            for write in (
                lambda: store.add_candidate(candidate(2)),
                lambda: store.add_samples(key(1), samples(3.0)),
                lambda: store.begin_attempt(key(3)),
                lambda: store.put_kernel(kernel()),
                lambda: queue.add_event(job.id, BatchProposed(), "slow"),
            ):
                with pytest.raises(LeaseLost, match="no longer held by slow"):
                    write()
            store.withdraw_attempt(key(2), number)
            with store.fenced(job.id, "next"):
                assert store.begin_attempt(key(2)) == 1
        store.add_candidate(candidate(3))
        assert len(store.candidates(GEMM, DEVICE.key, "sustained")) == 2
        assert store.kernel(GEMM, DEVICE.key, "sustained") is None
        assert len(queue.events(job.id)) == 1

    def test_what_was_measured_when_the_job_was_cancelled_is_kept(self, database: Database, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        store = SqlStore(database)
        self.claimed(queue)
        queue.cancel(job.id)
        with store.fenced(job.id, "w1"):
            store.add_candidate(candidate(1))

    # -- clocks --------------------------------------------------------------------------------

    @pytest.mark.parametrize("off", [2000.0, -3000.0])
    def test_a_host_whose_clock_is_wrong_steals_nothing_and_is_seen(
        self, database: Database, off: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue, real = JobQueue(database), time.time
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        assert queue.claim("right", KEYS, 600.0)
        monkeypatch.setattr(time, "time", lambda: real() + off)
        assert queue.claim("wrong", KEYS, 600.0) is None
        queue.register_worker("wrong", [DEVICE])
        assert queue.heartbeat(job.id, "right", 600.0) == "ok"
        monkeypatch.undo()
        assert [worker.name for worker in queue.live_workers(600.0)] == ["wrong"]
        assert queue.claim("next", KEYS, 600.0) is None, "the beat of a host in the past did not shorten the lease"

    @pytest.mark.parametrize("hour", [3600.0, -3600.0])
    def test_a_clock_of_the_database_that_jumps_loses_no_job_and_no_record(
        self, database: Database, queue: JobQueue, clock: FakeClock, hour: float
    ) -> None:
        store = SqlStore(database)
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        with store.fenced(job.id, "w1"):
            store.add_candidate(candidate(1))
        clock.now += hour
        assert queue.heartbeat(job.id, "w1", 5.0) == "ok", "whoever works goes on where nobody has taken it"
        assert queue.claim("w2", KEYS, 5.0) is None
        clock.now += 6
        again = self.claimed(queue, "w2")
        assert again.id == job.id, "a lease is as long as ever after the next beat"
        with store.fenced(job.id, "w1"), pytest.raises(LeaseLost):
            store.add_candidate(candidate(2))
        assert len(store.candidates(GEMM, DEVICE.key, "sustained")) == 1
        assert queue.finish(job.id, "w2", "done")

    @pytest.mark.parametrize(("back", "beats"), [(3600.0, 9), (300.0, 88)])
    def test_a_clock_of_the_database_that_goes_back_keeps_no_dead_worker_s_job_for_long(
        self, queue: JobQueue, clock: FakeClock, back: float, beats: int
    ) -> None:
        dead, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        alive, _ = queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        assert self.claimed(queue, "w2").id == alive.id
        for worker in ("w1", "w2"):
            queue.register_worker(worker, [DEVICE])
        clock.now -= back
        assert queue.claim("w3", KEYS, 5.0) is None, "nobody is dead for a clock that jumps"
        assert queue.live_workers(11.0) == [], "they were seen before it went back, and not since"
        assert queue.heartbeat(alive.id, "w2", 5.0) == "ok"
        queue.register_worker("w2", [DEVICE])
        assert [worker.name for worker in queue.live_workers(11.0)] == ["w2"]
        for beat in range(beats):
            assert queue.claim("w3", KEYS, 5.0) is None, f"free after {3.5 * beat:g} s"
            clock.now += 3.5
            assert queue.heartbeat(alive.id, "w2", 5.0) == "ok"
        assert self.claimed(queue, "w3").id == dead.id, "half a minute later, not an hour; else as much later"

    def test_nobody_is_dead_for_a_clock_that_goes_forward_and_leaves_this_machine_behind(
        self, database: Database, clock: FakeClock
    ) -> None:
        here = FakeClock()
        queue = JobQueue(database, clock, here)
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue, "alive")
        for _ in range(MAX_DEATHS + 1):
            clock.now += 60
            assert queue.claim("idle", KEYS, 5.0) is None, "both were suspended, and the idle one looks first"
            assert queue.heartbeat(job.id, "alive", 5.0) == "ok"
            clock.now, here.now = clock.now + 4, here.now + 4
            assert queue.claim("idle", KEYS, 5.0) is None
        clock.now, here.now = clock.now + 1, here.now + 1
        again = self.claimed(queue, "idle")
        assert (again.id, again.attempts) == (job.id, 2), "a lease later the clock tells who is dead"

    def test_a_worker_that_has_not_claimed_yet_knows_that_the_clock_went_forward(
        self, database: Database, queue: JobQueue, clock: FakeClock
    ) -> None:
        queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue, "alive")
        here = FakeClock()
        starting = JobQueue(database, clock, here)
        starting.register_worker("starting", [DEVICE])
        clock.now += 60
        assert starting.claim("starting", KEYS, 5.0) is None
        clock.now, here.now = clock.now + 5, here.now + 5
        assert self.claimed(starting, "starting").attempts == 2

    def test_no_device_of_a_worker_declares_another_one_of_it_dead(self, queue: JobQueue, clock: FakeClock) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue, "host.example:7:abcd.0")
        clock.now += 25
        assert queue.claim("host.example:7:abcd.1", KEYS, 5.0) is None, "its process was stopped for a while"
        assert queue.heartbeat(job.id, "host.example:7:abcd.0", 5.0) == "ok"
        clock.now += 5
        again = self.claimed(queue, "host.example:7:abcd.0")
        assert (again.id, again.attempts) == (job.id, 1), "what it could not put back is free for it, and no death"
        clock.now += 5
        assert self.claimed(queue, "host.example:8:abcd.0").attempts == 2

    # -- the bound -----------------------------------------------------------------------------

    def test_a_full_queue_refuses_new_jobs_and_joins_live_ones(self, queue: JobQueue) -> None:
        for m in (3, 5):
            queue.submit(JobRequest(GEMM.with_(m=m), DEVICE), max_queued=2)
        with pytest.raises(QueueFull, match="2 jobs wait already"):
            queue.submit(JobRequest(GEMM.with_(m=7), DEVICE), max_queued=2)
        assert len(queue.jobs()) == 2, "what was refused is not queued"
        assert queue.submit(JobRequest(GEMM.with_(m=5), DEVICE), max_queued=2)[1] is False
        self.claimed(queue)
        assert queue.submit(JobRequest(GEMM.with_(m=7), DEVICE), max_queued=2)[1] is True

    def test_a_job_that_is_to_improve_a_kernel_has_it_as_its_fallback_from_the_start(
        self, database: Database, queue: JobQueue
    ) -> None:
        first, second = (SqlStore(database).put_kernel(kernel()) for _ in range(2))
        job, created = queue.submit(JobRequest(GEMM, DEVICE), fallback_id=first.id)
        assert (created, job.fallback_id) == (True, first.id)
        assert queue.claim_fallback("w1", KEYS, 5.0) is None
        joined, created = queue.submit(JobRequest(GEMM, DEVICE), fallback_id=second.id)
        assert (created, joined) == (False, job), "a job that is joined keeps its own"

    # -- ends ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["finished", "cancelled", "set aside"])
    def test_an_end_has_an_id_between_what_comes_before_and_after_it(self, queue: JobQueue, how: str) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        other, _ = queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        ids: list[int] = []

        def newest(job_id: str) -> int:
            return queue.progress([job_id])[job_id].newest_event

        def end() -> None:
            if how == "finished":
                queue.finish(job.id, "w1", "failed")
            elif how == "cancelled":
                queue.cancel(job.id)
            else:
                queue.declare_dead("w1")

        for _ in range(2):
            ids.append(queue.add_event(job.id, BatchProposed()))
            for _ in range(MAX_DEATHS - 1 if how == "set aside" else 0):
                self.claimed(queue)
                queue.declare_dead("w1")
            assert self.claimed(queue).id == job.id
            end()
            ids.append(newest(job.id))
            end()
            assert newest(job.id) == ids[-1], "twice is the same as once"
            if how == "cancelled":
                ids += [queue.add_event(job.id, BatchProposed(), "w1"), newest(job.id)]
            queue.retry(job.id)
        assert ids == sorted(set(ids))
        assert newest(other.id) == 0
        told = [event.id for event in queue.events(job.id)]
        assert told == ids[::2], "ends are told from the job"

    def test_the_jobs_of_a_cancelled_batch_have_ends_with_ids(self, database: Database, queue: JobQueue) -> None:
        wanted = [WantedProblem(JobRequest(GEMM.with_(m=m), DEVICE)) for m in (3, 5)]
        batches = BatchTable(database)
        batch = batches.submit(wanted, asked=2)
        jobs = [job.id for job in queue.jobs()]
        for _ in range(2):
            batches.cancel(batch.id)
            assert sorted(one.newest_event for one in queue.progress(jobs).values()) == [1, 2]
