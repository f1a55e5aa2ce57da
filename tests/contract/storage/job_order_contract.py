"""Contract tests of the queue's order on every database: priority, windows, jobs that are put back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, await_locked, kernel
from tests.contract.storage.queue_fixtures import KEYS, FakeClock, QueueFixtures
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest, JobNotRetried, QueueFull, QuotaExceeded
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.access.quotas import Asker
from tirgemm.tuning_db.job_values import Window
from tirgemm.tuning_db.queue.job_rows import NewJob, add_jobs, put_back

NIGHT = Window.parse("22:00-06:00")
HOUR = 3600.0


def submit(queue: JobQueue, m: int, priority: int = 0, window: Window | None = None) -> str:
    return queue.submit(JobRequest(GEMM.with_(m=m), DEVICE, priority=priority, window=window))[0].id


class JobOrderContract(QueueFixtures):
    """Which job is next."""

    def test_the_highest_priority_is_first_then_the_oldest(self, queue: JobQueue) -> None:
        low, first, second, high = (submit(queue, m, priority) for m, priority in ((1, -5), (2, 0), (3, 0), (4, 7)))
        assert self.claimed(queue).id == high
        fallbacks = [queue.claim_fallback("w2", KEYS, 5.0) for _ in range(2)]
        assert [job.id for job in fallbacks if job is not None] == [first, second]
        assert self.claimed(queue).id == low

    def test_what_comes_next_is_told_in_the_order_of_claims(
        self, database: Database, queue: JobQueue, clock: FakeClock
    ) -> None:
        low, first, second, high = (submit(queue, m, priority) for m, priority in ((1, -5), (2, 0), (3, 0), (4, 7)))
        night = submit(queue, 5, 9, NIGHT)
        assert [job.id for job in queue.upcoming(KEYS, 3)] == [high, first, second], "it is 08:00"
        assert self.claimed(queue).id == high
        built = queue.claim_fallback("w2", KEYS, 5.0)
        assert built is not None
        assert [job.id for job in queue.upcoming(KEYS, 8)] == [built.id, second, low], "its fallback is being built"
        queue.set_fallback(second, SqlStore(database).put_kernel(kernel("fallback")).id)
        assert [job.id for job in queue.upcoming(KEYS, 8, bare=True)] == [built.id, low]
        assert [job.id for job in queue.upcoming(KEYS, 8, bare=True, skip={built.id})] == [low]
        assert queue.upcoming(["another key"], 8) == []
        clock.now += 14 * HOUR
        assert [job.id for job in queue.upcoming(KEYS, 1)] == [night]

    def test_a_joined_job_has_the_higher_of_both_priorities(self, queue: JobQueue) -> None:
        job = submit(queue, 1, 3)
        assert submit(queue, 1, 1) == job
        assert queue.jobs()[0].request.priority == 3
        assert submit(queue, 1, 9) == job
        assert queue.jobs()[0].request.priority == 9

    def test_a_queued_job_takes_another_place(self, queue: JobQueue) -> None:
        first, second = submit(queue, 1), submit(queue, 2)
        assert queue.prioritise(second, 1).request.priority == 1
        assert self.claimed(queue).id == second
        assert queue.prioritise(second, 100).request.priority == 1, "it runs already"
        with pytest.raises(InvalidRequest, match=r"priority is 101; .* from -100 to 100"):
            queue.prioritise(first, 101)

    @pytest.mark.parametrize("priority", [-101, 101, True])
    def test_a_priority_beyond_its_bounds_is_refused(self, priority: int) -> None:
        with pytest.raises(InvalidRequest, match="-100 to 100"):
            JobRequest(GEMM, DEVICE, priority=priority)

    def test_nothing_starts_outside_its_window(self, queue: JobQueue, clock: FakeClock) -> None:
        night, noon = submit(queue, 1, 5, NIGHT), submit(queue, 2, 4, Window.parse("11:59-12:01"))
        assert queue.claim("w1", KEYS, 5.0) is None, "it is 08:00"
        assert queue.claim_fallback("w1", KEYS, 5.0) is None
        clock.now += 4 * HOUR
        assert self.claimed(queue, lease_s=24 * HOUR).id == noon
        clock.now += 10 * HOUR - 1
        assert queue.claim("w1", KEYS, 5.0) is None, "it is 21:59:59"
        clock.now += 1
        assert self.claimed(queue).id == night

    def test_a_window_past_midnight_ends_in_the_morning(self, queue: JobQueue, clock: FakeClock) -> None:
        clock.now += 21 * HOUR
        job = submit(queue, 1, 0, NIGHT)
        assert queue.jobs()[0].request.window == NIGHT
        clock.now += HOUR
        assert queue.claim("w1", KEYS, 5.0) is None, "it is 06:00"
        clock.now -= 0.5
        assert self.claimed(queue).id == job

    def test_who_has_no_window_lifts_that_of_the_job_it_joins(self, queue: JobQueue) -> None:
        job = submit(queue, 1, 0, NIGHT)
        assert submit(queue, 1, 0, Window.parse("10:00-11:00")) == job
        assert queue.jobs()[0].request.window == NIGHT
        assert submit(queue, 1) == job
        assert self.claimed(queue).id == job

    @pytest.mark.parametrize(
        "text", ["22:00", "24:00-06:00", "22:60-06:00", "06:00-06:00", "٢٢:00-06:00", " 22:00-06:00"]
    )
    def test_what_is_no_window_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidRequest, match="window is"):
            Window.parse(text)

    def test_a_job_is_put_back_so_often_and_no_more(self, queue: JobQueue) -> None:
        job = submit(queue, 1)
        for number in (1, 2):
            self.claimed(queue)
            assert queue.finish(job, "w1", "failed", error="storage_full: no space")
            again = queue.retry(job, "the disk was emptied\0", limit=2)
            assert (again.status, again.error, again.finished_at, again.attempts) == ("queued", None, None, 0)
            assert (again.retries, again.retry_reason) == (number, "the disk was emptied\N{REPLACEMENT CHARACTER}")
        assert submit(queue, 1) == job, "it is joined as any live job"
        queue.cancel(job)
        with pytest.raises(JobNotRetried, match="retried 2 times already"):
            queue.retry(job, limit=2)

    def test_a_retry_that_is_repeated_is_one(self, queue: JobQueue) -> None:
        job = submit(queue, 1)
        self.claimed(queue)
        assert queue.finish(job, "w1", "failed", error="storage_full: no space")
        once = queue.retry(job, "emptied", max_queued=1)
        assert queue.retry(job, "emptied", max_queued=1) == once, "whoever asks again has not heard that it worked"
        with pytest.raises(JobNotRetried, match="is queued; only"):
            queue.retry(job, "for another reason")
        self.claimed(queue)
        assert queue.retry(job, "emptied").status == "running"
        assert queue.finish(job, "w1", "failed")
        again = queue.retry(job, "emptied")
        assert (again.status, again.retries) == ("queued", 2), "it failed since"

    def test_retries_at_the_same_time_are_one(self, queue: JobQueue) -> None:
        job = submit(queue, 1)
        self.claimed(queue)
        assert queue.finish(job, "w1", "failed")
        began = threading.Event()

        def again() -> Job:
            began.set()
            return queue.retry(job, "emptied")

        with ThreadPoolExecutor(1) as other:
            with queue.db.write() as connection:
                assert put_back(connection, job, "emptied", 3, queue._now(connection))
                late = other.submit(again)
                assert began.wait(PATIENCE_S)
                await_locked(queue.db, connection, 1)
            assert (late.result(PATIENCE_S).status, late.result().retries) == ("queued", 1)

    def test_a_retry_beside_the_same_request_is_refused_where_that_was_first(self, queue: JobQueue) -> None:
        gone = submit(queue, 1)
        ended = queue.cancel(gone)
        began = threading.Event()

        def again() -> Job:
            began.set()
            return queue.retry(gone)

        with ThreadPoolExecutor(1) as other:
            with queue.db.write() as connection:
                (first,), _ = add_jobs(queue.db, connection, [NewJob(ended.request, {})], queue._now(connection))
                late = other.submit(again)
                assert began.wait(PATIENCE_S)
                await_locked(queue.db, connection, 1)
            with pytest.raises(JobNotRetried, match=f"job {first} works on the request of job {gone} already"):
                late.result(PATIENCE_S)
        assert queue.job(gone) == ended

    def test_what_lives_is_done_or_has_a_successor_is_not_put_back(self, queue: JobQueue) -> None:
        job = submit(queue, 1)
        for status in ("queued", "running"):
            with pytest.raises(JobNotRetried, match=f"is {status}; only"):
                queue.retry(job)
            queue.claim("w1", KEYS, 5.0)
        assert queue.finish(job, "w1", "done")
        with pytest.raises(JobNotRetried, match="is done; only"):
            queue.retry(job)
        gone = submit(queue, 2)
        queue.cancel(gone)
        successor = submit(queue, 2)
        with pytest.raises(JobNotRetried, match=successor):
            queue.retry(gone)

    def test_a_job_that_is_put_back_needs_room_and_counts_against_its_key(self, queue: JobQueue) -> None:
        asker = Asker("key", live_jobs=1, trials_a_day=1000, bytes_stored=1000, batch_problems_a_day=1000)
        job = queue.submit(JobRequest(GEMM, DEVICE), asker=asker)[0].id
        queue.cancel(job)
        other = queue.submit(JobRequest(GEMM.with_(m=3), DEVICE), asker=asker)[0].id
        with pytest.raises(QueueFull):
            queue.retry(job, max_queued=1)
        with pytest.raises(QuotaExceeded, match="live_jobs"):
            queue.retry(job, asker=asker)
        ended = queue.job(job)
        assert ended is not None
        assert (ended.status, ended.retries) == ("cancelled", 0), "nothing of it is left"
        queue.cancel(other)
        assert queue.retry(job, asker=asker, max_queued=1).status == "queued"
