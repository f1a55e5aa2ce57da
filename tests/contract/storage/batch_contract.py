"""Contract tests of batches on every database: one group, one budget, one cancellation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from tests.contract.storage.databases import DEVICE, GEMM, candidate, config, kernel
from tests.contract.storage.queue_fixtures import KEYS, FakeClock, QueueFixtures
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest, JobNotRetried, QueueFull, QuotaExceeded
from tirgemm.status import EndedStatus, Role, Status
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning.budget import MAX_SECONDS, MAX_TRIALS, Budget
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.access.quotas import Asker
from tirgemm.tuning_db.models import GemmRow
from tirgemm.tuning_db.queue.batch_totals import BatchBudget
from tirgemm.tuning_db.queue.batches import Batch, BatchTable, WantedProblem
from tirgemm.tuning_db.queue.budget_shares import Spending


def wanted(m: int, gain: float = 0.1, **options: Any) -> WantedProblem:
    request = {name: options.pop(name) for name in ("trials", "seconds", "priority") if name in options}
    return WantedProblem(JobRequest(GEMM.with_(m=m), DEVICE, **request), gain, **options)


@contextmanager
def counted(database: Database, statements: list[str]) -> Iterator[None]:
    """Add what is executed to ``statements``; many rows in one call are one."""

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


class BatchContract(QueueFixtures):
    """What a batch is made of and how it ends."""

    @pytest.fixture
    def batches(self, database: Database, clock: FakeClock) -> BatchTable:
        return BatchTable(database, clock)

    def test_jobs_are_queued_by_falling_gain_and_known_kernels_are_hits(
        self, database: Database, queue: JobQueue, batches: BatchTable
    ) -> None:
        known = SqlStore(database).put_kernel(kernel())
        batch = batches.submit(
            [wanted(3, 0.1, times=2), wanted(5, 0.7), WantedProblem(JobRequest(GEMM, DEVICE), 0.3, known.id)], asked=4
        )
        assert [(item.gemm.m, item.times) for item in batch.items] == [(5, 1), (17, 1), (3, 2)]
        assert (batch.asked, batch.status, batch.states) == (4, "queued", {"queued": 2, "hit": 1})
        assert batch.items[1].kernel_id == known.id
        assert batches.batch(batch.id) == batch
        first = self.claimed(queue)
        assert (first.request.gemm.m, first.batch_id) == (5, batch.id)
        running = batches.batch(batch.id)
        assert running is not None
        assert running.status == "running"
        assert batches.batch("nope") is None

    def test_live_jobs_are_joined_and_belong_to_whom_they_did(
        self, queue: JobQueue, batches: BatchTable, clock: FakeClock
    ) -> None:
        job, _ = queue.submit(JobRequest(GEMM.with_(m=3), DEVICE))
        batch = batches.submit([wanted(3, priority=8), wanted(5)], asked=2)
        joined, mine = (next(item.job_id for item in batch.items if item.gemm.m == m) for m in (3, 5))
        assert joined == job.id
        kept = queue.job(job.id)
        assert kept is not None
        assert (kept.batch_id, kept.request.priority) == (None, 8)
        cancelled = batches.cancel(batch.id)
        assert (cancelled.status, cancelled.states) == ("cancelled", {"queued": 1, "cancelled": 1})
        ended = queue.job(str(mine))
        assert ended is not None
        assert (ended.status, ended.batch_id) == ("cancelled", batch.id)
        clock.now += 20
        assert batches.cancel(batch.id) == cancelled, "twice is the same as once"
        queue.retry(str(mine))
        assert batches.cancel(batch.id).states == cancelled.states, "but for what was put back"

    def test_a_batch_ends_with_its_jobs_and_tells_the_gain(
        self, database: Database, queue: JobQueue, batches: BatchTable, clock: FakeClock
    ) -> None:
        batch = batches.submit([wanted(m) for m in (3, 5, 7)], asked=3)
        stored = SqlStore(database).put_kernel(replace(kernel(), gemm=GEMM.with_(m=3)))
        fallback = SqlStore(database).put_kernel(replace(kernel(), gemm=GEMM.with_(m=5), role="fallback"))
        told = batches.states([batch.id, "nope"])
        assert set(told) == {batch.id}
        ends: list[tuple[EndedStatus, str | None]] = [("done", stored.id), ("done", fallback.id), ("failed", None)]
        for status, kernel_id in ends:
            job = self.claimed(queue)
            clock.now += 20
            assert queue.finish(job.id, "w1", status, kernel_id=kernel_id)
        assert batches.states([batch.id]) != told
        done = batches.batch(batch.id)
        assert done is not None
        assert (done.status, done.states) == ("done", {"done": 2, "failed": 1})
        assert done.spent.seconds == 3 * 20, "without a budget all of it counts"
        ratio = stored.timings.of("sustained")
        assert ratio is not None
        assert done.kernels == 1, "a default is no gain"
        assert done.gain == pytest.approx(ratio.ratio_to("default"))
        assert batches.cancel(batch.id) == done, "there is nothing to cancel"
        assert SqlStore(database).delete_kernel(stored.id)
        without = batches.batch(batch.id)
        assert without is not None
        assert without.gain is None

    def test_all_or_nothing(self, queue: JobQueue, batches: BatchTable) -> None:
        asker = Asker("key", live_jobs=2, trials_a_day=100, bytes_stored=1000, batch_problems_a_day=1000)
        three = [wanted(m, trials=33) for m in (3, 5, 7)]
        with pytest.raises(InvalidRequest, match="3 new jobs are more than the 2 that may wait"):
            batches.submit(three, asked=3, max_queued=2)
        other = queue.submit(JobRequest(GEMM.with_(m=9), DEVICE))[0].id
        with pytest.raises(QueueFull, match="1 job waits already, this request adds 3, and at most 3 may wait"):
            batches.submit(three, asked=3, max_queued=3)
        assert [job.id for job in queue.jobs()] == [other]
        self.claimed(queue)
        assert queue.finish(other, "w1", "failed")
        with pytest.raises(QuotaExceeded, match=r"live_jobs: this key has 0 queued .* may have 2"):
            batches.submit(three, asked=3, asker=asker)
        more = replace(asker, live_jobs=3)
        with pytest.raises(QuotaExceeded, match="these 3 jobs this key has asked for 102 trials"):
            batches.submit([wanted(m, trials=34) for m in (3, 5, 7)], asked=3, asker=more)
        for number in (0, 1001):
            with pytest.raises(InvalidRequest, match=f"a batch of {number} problems"):
                batches.submit([wanted(3)] * number, asked=number)
        assert ([job.id for job in queue.jobs()], batches.batches()) == ([other], [])
        assert batches.submit(three, asked=3, asker=more, max_queued=3).key_id == "key"

    def test_a_kernel_that_was_deleted_since_it_was_seen_is_told_as_deleted(
        self, database: Database, queue: JobQueue, batches: BatchTable
    ) -> None:
        store = SqlStore(database)
        gone = store.put_kernel(kernel()).id
        assert store.delete_kernel(gone)
        known = WantedProblem(JobRequest(GEMM, DEVICE), 0.3, gone)
        batch = batches.submit([known, wanted(3, fallback_id=gone)], asked=2)
        assert batch.states == {"deleted": 1, "queued": 1}
        assert [job.fallback_id for job in queue.jobs()] == [None]

    def test_a_batch_that_is_asked_for_again_is_the_same_whatever_became_of_it(
        self, queue: JobQueue, batches: BatchTable
    ) -> None:
        asker = Asker("key", live_jobs=2, trials_a_day=9999, bytes_stored=1000, batch_problems_a_day=2)
        two = [wanted(m) for m in (3, 5)]
        batch = batches.submit(two, asked=2, asker=asker, max_queued=2, batch_id="0123456789abcdef")
        assert batch.id == "0123456789abcdef"
        again = batches.submit(two, asked=2, asker=asker, max_queued=2, batch_id=batch.id)
        assert again == batch, "it takes no room, and nothing of a quota"
        assert {job.batch_id for job in queue.jobs()} == {batch.id}
        assert batches.cancel(again.id).states == {"cancelled": 2}
        assert batches.submit(two, asked=2, asker=asker, batch_id=batch.id).status == "cancelled"
        assert (len(queue.jobs()), len(batches.batches())) == (2, 1)

    def test_a_batch_that_is_asked_for_twice_at_once_is_made_once(self, queue: JobQueue, batches: BatchTable) -> None:
        made: list[Batch] = []
        together = threading.Barrier(4)

        def ask() -> None:
            together.wait(PATIENCE_S)
            made.append(batches.submit([wanted(m) for m in (3, 5)], asked=2, batch_id="0123456789abcdef"))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert made == [made[0]] * 4
        assert {job.batch_id for job in queue.jobs()} == {made[0].id}

    def test_the_statements_of_a_batch_do_not_grow_in_number_with_its_problems(
        self, database: Database, batches: BatchTable
    ) -> None:
        counts = []
        known = SqlStore(database).put_kernel(kernel())
        for problems in (range(1, 13), range(1, 1001)):
            statements = list[str]()
            # Of the problems of the second batch some are joined, some are hits and most are new.
            few = [wanted(m, kernel_id=known.id if m % 7 == 0 else None) for m in problems]
            with counted(database, statements):
                batch = batches.submit(few, asked=len(few))
            assert sum(batch.states.values()) == len(few)
            counts.append(len(statements))
        assert counts[1] <= counts[0] + 8, "a second part of an IN list each, and none for each problem"

    def test_new_problems_are_added_in_one_order_whatever_the_batch_expects_of_them(
        self, database: Database, batches: BatchTable
    ) -> None:
        batches.submit([wanted(m, m * 7 % 11) for m in range(1, 40)], asked=39)
        with database.read() as connection:
            texts = list(connection.execute(select(GemmRow.text).order_by(GemmRow.id)).scalars())
        assert len(texts) == 39
        assert texts == sorted(texts), "in another one two batches would wait for each other's problems"

    def test_known_problems_count_against_a_quota_of_a_day(
        self, database: Database, batches: BatchTable, clock: FakeClock
    ) -> None:
        known = SqlStore(database).put_kernel(kernel())
        asker = Asker("key", live_jobs=1, trials_a_day=1, bytes_stored=1, batch_problems_a_day=5)
        hit = [WantedProblem(JobRequest(GEMM, DEVICE), kernel_id=known.id)]
        batches.submit(hit, asked=3, asker=asker)
        clock.now += 3600
        batches.submit(hit, asked=2, asker=asker)
        with pytest.raises(QuotaExceeded, match=r"batch_problems_a_day: .* 6 problems .* may name 5") as refused:
            batches.submit(hit, asked=1, asker=asker)
        assert refused.value.retry_after == 23 * 3600
        assert len(batches.batches()) == 2
        assert batches.submit(hit, asked=1000, asker=replace(asker, key_id="another", batch_problems_a_day=1000))
        clock.now += 23 * 3600
        assert batches.submit(hit, asked=3, asker=asker).states == {"hit": 1}

    def test_a_listed_batch_has_the_figures_of_the_batch_itself(
        self, database: Database, queue: JobQueue, batches: BatchTable, clock: FakeClock
    ) -> None:
        store = SqlStore(database)
        ids = {}
        figures: list[tuple[int, Role, float]] = [(101, "tuned", 1.5), (103, "fallback", 3.0), (105, "tuned", 0.5)]
        for m, role, ratio in figures:
            timings = Timings({"sustained": Timing(10.0, 41, {"default": BaselineTime(10 * ratio, ratio)})})
            stored = store.put_kernel(replace(kernel(), gemm=GEMM.with_(m=m), role=role, timings=timings))
            ids[m] = stored.id
        hits = [wanted(m, kernel_id=ids[m]) for m in (101, 103)]
        jobs = [wanted(m, 0.9 - m / 100) for m in (3, 5, 7, 9)]
        batch = batches.submit([*hits, *jobs], asked=9, budget=BatchBudget(trials=40))
        other = batches.submit([wanted(201)], asked=1)
        ends: list[tuple[EndedStatus, str | None]] = [("done", ids[105]), ("failed", None)]
        for status, kernel_id in ends:
            job = self.claimed(queue)
            store.add_candidate(candidate(1, gemm=job.request.gemm))
            clock.now += 20
            assert queue.finish(job.id, "w1", status, kernel_id=kernel_id)
        self.claimed(queue, lease_s=60.0)
        listed, whole = batches.batches(), batches.batch(batch.id)
        assert whole is not None
        assert [one.id for one in listed] == [other.id, batch.id]
        states = {"hit": 2, "queued": 1, "running": 1, "done": 1, "failed": 1}
        assert (listed[1].states, listed[1].status, listed[1].kernels) == (states, "running", 2)
        assert listed[1].gain == pytest.approx((1.5 * 0.5) ** 0.5)
        assert whole.gain == pytest.approx(listed[1].gain)
        assert (listed[1].spent.trials, listed[1].spent.seconds) == (2, 40.0)
        assert listed[1].spent.reserved_trials > 0
        names = ("key_id", "asked", "budget", "spent", "created_at", "cancelled_at", "states", "kernels", "status")
        assert [getattr(listed[1], name) for name in names] == [getattr(whole, name) for name in names]
        assert batches.totals([batch.id, "nope"]) == {batch.id: listed[1]}
        assert (listed[0].gain, listed[0].kernels, listed[0].spent) == (None, 0, Spending())
        assert store.delete_kernel(ids[103])
        assert batches.batches()[1].states == states | {"hit": 1, "deleted": 1}

    def test_a_list_of_batches_reads_none_of_their_items(self, database: Database, batches: BatchTable) -> None:
        counts = []
        for number, size in ((1, 1), (7, 40)):
            while (made := len(batches.batches())) < number:
                batches.submit([wanted(1 + made * size + m) for m in range(size)], asked=size)
            statements = list[str]()
            with counted(database, statements):
                assert len(batches.batches()) == number
            counts.append(len(statements))
            assert not [each for each in statements if "timings" in each or "gemms" in each], "neither times nor texts"
        assert counts[0] == counts[1], "what is listed is summed for all batches at once"

    def test_batches_are_listed_newest_first_by_keyset(self, batches: BatchTable) -> None:
        ids = [batches.submit([wanted(m)], asked=1).id for m in (3, 5, 7)]
        assert [batch.id for batch in batches.batches()] == ids[::-1]
        assert [batch.id for batch in batches.batches(1, after=ids[2])] == [ids[1]]
        with pytest.raises(InvalidRequest, match="after is 'nope'"):
            batches.batches(after="nope")

    # -- the budget ----------------------------------------------------------------------------

    def test_a_job_starts_with_its_share_and_what_is_left_goes_to_the_next(
        self, database: Database, queue: JobQueue, batches: BatchTable, clock: FakeClock
    ) -> None:
        store = SqlStore(database)
        jobs = [wanted(m, gain) for m, gain in ((3, 0.6), (5, 0.3), (7, 0.1))]
        batch = batches.submit(jobs, asked=3, budget=BatchBudget(103, 200.0))
        first = self.claimed(queue, lease_s=60.0)
        assert first.request.trials == 61
        assert first.request.seconds == pytest.approx(1 + 197 * 0.6)
        spent = batches.batch(batch.id)
        assert spent is not None
        assert (spent.spent.reserved_trials, spent.spent.trials) == (61, 0)
        second = self.claimed(queue, "w2", lease_s=60.0)
        assert second.request.trials == 1 + int(40 * 0.75), "what runs keeps its share"
        for number in range(10):
            changes = {"gemm": first.request.gemm, "status": Status.WRONG if number % 2 else Status.MEASURED}
            store.add_candidate(candidate(number, config=config(number), **changes))
        store.add_candidate(candidate(99, gemm=first.request.gemm, status=Status.PRUNED, sample_sets=()))
        clock.now += 20
        assert queue.finish(first.id, "w1", "done")
        third = self.claimed(queue)
        assert third.request.trials == 103 - 10 - 31, "of the first one 51 are left"
        assert third.request.seconds == pytest.approx(200 - 20 - second.request.seconds)

    def test_what_others_leave_makes_no_search_longer_than_one_may_be(
        self, queue: JobQueue, batches: BatchTable
    ) -> None:
        batches.submit([wanted(m) for m in range(1, 31)], asked=30, budget=BatchBudget(30 * 4096, 30 * 86400.0))
        for job in queue.jobs()[:-2]:
            queue.cancel(job.id)
        limited = queue.claim("w1", KEYS, 5.0, limit=Budget(4096, 14400.0))
        assert limited is not None
        assert (limited.request.trials, limited.request.seconds) == (4096, 14400.0)
        last = self.claimed(queue, "w2").request
        assert (last.trials, last.seconds) == (MAX_TRIALS, MAX_SECONDS), "what any search may have at most"

    def test_a_job_that_is_put_back_answers_the_request_that_it_was(self, queue: JobQueue, batches: BatchTable) -> None:
        batches.submit([wanted(m, trials=10) for m in (3, 5, 7, 9)], asked=4, budget=BatchBudget(trials=40))
        for job in queue.jobs()[:-1]:
            queue.cancel(job.id)
        granted = self.claimed(queue)
        assert granted.request.trials == 40
        assert queue.finish(granted.id, "w1", "failed")
        same = JobRequest(granted.request.gemm, DEVICE, trials=10)
        first, _ = queue.submit(same)
        with pytest.raises(JobNotRetried, match=f"job {first.id} works on the request"):
            queue.retry(granted.id)
        queue.cancel(first.id)
        queue.retry(granted.id)
        assert queue.submit(same)[0].id == granted.id

    def test_known_kernels_need_no_room_in_the_queue(
        self, database: Database, queue: JobQueue, batches: BatchTable
    ) -> None:
        known = SqlStore(database).put_kernel(kernel())
        queue.submit(JobRequest(GEMM.with_(m=3), DEVICE))
        running = self.claimed(queue)
        queue.submit(JobRequest(GEMM.with_(m=5), DEVICE), max_queued=1)
        assert queue.release(running.id, "w1")
        hits = [WantedProblem(JobRequest(GEMM, DEVICE), kernel_id=known.id), wanted(5)]
        assert batches.submit(hits, asked=2, max_queued=1).states == {"hit": 1, "queued": 1}

    def test_a_job_that_starts_again_goes_on_with_what_is_left(
        self, database: Database, queue: JobQueue, batches: BatchTable
    ) -> None:
        store = SqlStore(database)
        store.add_candidate(candidate(1, gemm=GEMM.with_(m=3)))
        batch = batches.submit([wanted(3, 0.5)], asked=1, budget=BatchBudget(trials=20))
        first = self.claimed(queue)
        assert first.request.trials == 21, "on top of the one that is recorded"
        assert queue.release(first.id, "w1")
        assert self.claimed(queue).request.trials == 21
        assert batch.budget == BatchBudget(20, None)

    def test_the_seconds_of_runs_that_ended_early_are_spent(
        self, queue: JobQueue, batches: BatchTable, clock: FakeClock
    ) -> None:
        batch = batches.submit([wanted(3)], asked=1, budget=BatchBudget(seconds=100.0))

        def spent() -> float:
            now = batches.batch(batch.id)
            assert now is not None
            return now.spent.seconds

        first = self.claimed(queue, lease_s=60.0)
        assert first.request.seconds == 100.0
        clock.now += 20
        assert queue.release(first.id, "w1")
        clock.now += 1000
        assert spent() == 20, "what it waited for is not spent"
        assert self.claimed(queue, "w2", lease_s=30.0).request.seconds == 80.0
        clock.now += 1000
        assert self.claimed(queue, "w3", lease_s=60.0).request.seconds == 50.0, (
            "a worker lives no longer than its lease"
        )
        clock.now += 7
        queue.cancel(first.id)
        assert spent() == 57
        queue.retry(first.id)
        assert spent() == 57, "it is spent whatever becomes of the job"
        assert self.claimed(queue, lease_s=60.0).request.seconds == 43.0
        clock.now += 59
        assert queue.finish(first.id, "w1", "done")
        assert spent() == 100, "certifying comes on top of what was granted"

    def test_without_a_budget_each_job_has_its_own(self, queue: JobQueue, batches: BatchTable) -> None:
        batches.submit([wanted(3, trials=33)], asked=1)
        assert self.claimed(queue).request.trials == 33
