"""Contract tests of what is submitted to the job queue and listed of it, on every database."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, kernel
from tests.contract.storage.queue_fixtures import KEYS, QueueFixtures
from tests.traces.kept_spans import kept_spans
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.status import EndedStatus
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.process import spans
from tirgemm.tuning_db import Database, Job, JobQueue, JobRequest, SqlStore
from tirgemm.tuning_db.access.quotas import Asker


class JobSubmissionContract(QueueFixtures):
    """What is submitted, joined and listed."""

    def test_a_job_comes_back_as_it_was_submitted(self, queue: JobQueue) -> None:
        spent: dict[str, Any] = {"trials": 33, "seconds": 7.25, "effort": Effort.QUICK}
        request = JobRequest(OTHER_GEMM, DEVICE, "isolated", **spent, seed=-(2**63), verify=False)
        job, created = queue.submit(request)
        assert created
        assert job.request == request
        assert (job.status, job.attempts, job.owner, job.kernel_id, job.fallback_id) == ("queued", 0, None, None, None)
        assert job.created_at == "2027-01-15T08:00:00.000000Z"
        assert queue.job(job.id) == job
        assert queue.job("nope") is None

    def test_the_newest_job_is_another_after_each_that_comes(self, queue: JobQueue) -> None:
        assert queue.newest() is None
        first, _ = queue.submit(JobRequest(GEMM, DEVICE))
        number = queue.newest()
        assert queue.submit(JobRequest(GEMM, DEVICE))[0].id == first.id
        assert queue.newest() == number, "no job was added"
        queue.submit(JobRequest(OTHER_GEMM, DEVICE))
        assert number != queue.newest()

    def test_the_same_request_joins_the_live_job(self, queue: JobQueue) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        assert queue.submit(JobRequest(GEMM, DEVICE, seed=7)) == (job, False)
        running = self.claimed(queue)
        assert queue.submit(JobRequest(GEMM, DEVICE)) == (running, False)

    def test_a_job_names_the_span_that_asked_for_it_first(self, queue: JobQueue) -> None:
        with kept_spans() as kept, spans.span("request"):
            job, _ = queue.submit(JobRequest(GEMM, DEVICE))
            assert queue.submit(JobRequest(GEMM, DEVICE)) == (job, False)
        first, _ = (span.context for span in kept.named("submit", 2))
        assert first is not None
        assert job.traceparent is not None
        assert job.traceparent.startswith(f"00-{first.trace_id:032x}-{first.span_id:016x}-")
        assert self.claimed(queue).traceparent == job.traceparent
        assert queue.submit(JobRequest(OTHER_GEMM, DEVICE))[0].traceparent is None

    @pytest.mark.parametrize(
        "other",
        [
            JobRequest(OTHER_GEMM, DEVICE),
            JobRequest(GEMM, OTHER_DEVICE),
            JobRequest(GEMM, DEVICE, "isolated"),
            JobRequest(GEMM, DEVICE, trials=65),
            JobRequest(GEMM, DEVICE, seconds=600.0),
            JobRequest(GEMM, DEVICE, effort=Effort.EXHAUSTIVE),
            JobRequest(GEMM, DEVICE, verify=False),
        ],
    )
    def test_another_request_is_another_job(self, queue: JobQueue, other: JobRequest) -> None:
        first, _ = queue.submit(JobRequest(GEMM, DEVICE))
        second, created = queue.submit(other)
        assert created
        assert second.id != first.id

    @pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
    def test_an_ended_job_is_not_joined(self, queue: JobQueue, end: EndedStatus) -> None:
        job, _ = queue.submit(JobRequest(GEMM, DEVICE))
        self.claimed(queue)
        assert queue.finish(job.id, "w1", end)
        again, created = queue.submit(JobRequest(GEMM, DEVICE))
        assert created
        assert again.id != job.id

    def test_a_request_that_is_sent_again_is_the_job_that_it_made_whatever_became_of_it(self, queue: JobQueue) -> None:
        asker = Asker("key", live_jobs=1, trials_a_day=9999, bytes_stored=1000, batch_problems_a_day=2)
        job, created = queue.submit(JobRequest(GEMM, DEVICE), asker=asker, max_queued=1, job_id="0123456789abcdef")
        assert (job.id, created) == ("0123456789abcdef", True)
        # By then more is recorded, on top of which it asks for as much again.
        later = JobRequest(GEMM, DEVICE, trials=1000)
        again = queue.submit(later, asker=asker, max_queued=1, job_id=job.id)
        assert again == (job, False), "it takes no room, and nothing of a quota"
        queue.cancel(job.id)
        ended, created = queue.submit(later, asker=asker, job_id=job.id)
        assert (ended.id, ended.status, created) == (job.id, "cancelled", False)
        assert len(queue.jobs()) == 1

    def test_a_request_that_is_sent_twice_at_once_makes_one_job(self, queue: JobQueue) -> None:
        made: list[tuple[str, bool]] = []
        together = threading.Barrier(8)

        def ask(trials: int) -> None:
            together.wait(PATIENCE_S)
            job, created = queue.submit(JobRequest(GEMM, DEVICE, trials=trials), job_id="0123456789abcdef")
            made.append((job.id, created))

        threads = [threading.Thread(target=ask, args=(2**number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(made) == [("0123456789abcdef", False)] * 7 + [("0123456789abcdef", True)]
        assert len(queue.jobs()) == 1

    def test_a_kernel_that_was_deleted_since_it_was_seen_is_none(self, database: Database, queue: JobQueue) -> None:
        store = SqlStore(database)
        gone = store.put_kernel(kernel()).id
        assert store.delete_kernel(gone)
        job, created = queue.submit(JobRequest(GEMM, DEVICE), fallback_id=gone)
        assert (created, job.fallback_id) == (True, None)
        self.claimed(queue)
        queue.set_fallback(job.id, gone)
        assert queue.finish(job.id, "w1", "done", kernel_id=gone)
        ended = queue.job(job.id)
        assert ended is not None
        assert (ended.status, ended.fallback_id, ended.kernel_id) == ("done", None, None)

    def test_threads_that_submit_the_same_request_make_one_job(self, queue: JobQueue) -> None:
        made: list[tuple[Job, bool]] = []
        threads = [
            threading.Thread(target=lambda: made.append(queue.submit(JobRequest(GEMM, DEVICE)))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({job.id for job, _ in made}) == 1
        assert sum(created for _, created in made) == 1

    @pytest.mark.parametrize(
        "bad", [{"regime": "cold"}, {"trials": -1}, {"seconds": float("nan")}, {"seconds": -0.5}, {"seed": 2**63}]
    )
    def test_a_request_outside_its_limits_cannot_be_made(self, bad: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest, match=next(iter(bad))):
            JobRequest(GEMM, DEVICE, **bad)

    def test_jobs_are_listed_by_sizes_of_any_dtype_and_layout(self, queue: JobQueue) -> None:
        texts = ("129x67x31:f16:nt", "129x67x31:bf16:nn", "129x67x311:f16:nt", "1..129x67x31:f16:nt")
        ids = [queue.submit(JobRequest(Gemm.parse(text), DEVICE))[0].id for text in texts]
        assert [job.id for job in queue.jobs(sizes="129x67x31")] == [ids[1], ids[0]]
        assert [job.id for job in queue.jobs(gemm=Gemm.parse(texts[0]))] == [ids[0]]
        assert queue.jobs(sizes="%") == queue.jobs(sizes="129x67x3_") == []

    def test_jobs_are_listed_newest_first_and_by_status(self, queue: JobQueue) -> None:
        ids = [queue.submit(JobRequest(GEMM.with_(m=m), DEVICE))[0].id for m in (3, 5, 7)]
        self.claimed(queue)
        assert [job.id for job in queue.jobs()] == ids[::-1]
        assert [job.id for job in queue.jobs(limit=1)] == ids[2:]
        assert [job.id for job in queue.jobs(status="running")] == ids[:1]

    def test_jobs_are_listed_by_problem_and_device(self, queue: JobQueue) -> None:
        mine = queue.submit(JobRequest(GEMM, DEVICE))[0].id
        elsewhere = queue.submit(JobRequest(GEMM, OTHER_DEVICE))[0].id
        other = queue.submit(JobRequest(OTHER_GEMM, DEVICE))[0].id
        assert [job.id for job in queue.jobs(gemm=GEMM)] == [elsewhere, mine]
        assert [job.id for job in queue.jobs(device_keys=KEYS)] == [other, mine]
        assert [job.id for job in queue.jobs(gemm=GEMM, device_keys=KEYS)] == [mine]
        assert queue.jobs(device_keys=[]) == []
