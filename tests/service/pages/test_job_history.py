"""Sums of jobs' events: those of a range of m, and how many jobs are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.service.pages.browser import Browser
from tests.service.pages.search_events import candidates, race, search_events
from tests.service.support import CPU, Service, queueing
from tirgemm.gemm import Gemm
from tirgemm.service.views import job_history
from tirgemm.service.views.job_history import HistoryReader
from tirgemm.tuning_db import Job, JobQueue, JobRequest, StoredEvent


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with queueing(tmp_path) as actual:
        yield actual


def queued(service: Service, m: str) -> Job:
    return service.queue.submit(JobRequest(Gemm.parse(f"{m}x67x31:f16:nt"), CPU))[0]


def test_a_range_of_m_has_its_fastest_and_its_race_at_each_size(service: Service, browser: Browser) -> None:
    job = queued(service, "1..64")
    for event in search_events(0):
        service.queue.add_event(job.id, event)
    for m in ("1..64", "1..8"):
        for event in candidates(5, trials=8):
            service.queue.add_event(job.id, replace(event, m=m))
        service.queue.add_event(job.id, replace(race(), m=m))
    told = service.http.get(f"/jobs/{job.id}").json()["history"]
    assert [(one["m"], one["ratio"]) for one in told["fastest"]] == [("1..8", None), ("1..64", None)]
    assert told["pruned"][0] == {"rule": "registers", "count": 412, "sentence": ""}
    assert told["builds"] == {"queued": 5, "building": 2, "built": 1}
    assert [one["m"] for one in told["races"]] == ["1..64", "1..8"]
    page = unescape(browser.open(f"/jobs/{job.id}").text)
    assert "For m = 1..8, measured at its end." in page
    assert told["standing"] == {"tried": 10, "measured": 0, "best_us": None, "best": None, "default_us": None}
    assert 'class="best"' not in page, "sizes of m have no best in common"
    assert "The line is the best so far" not in page


class CountingQueue(JobQueue):
    """A queue that counts the events that are read."""

    read = 0

    def events(self, *args: Any, **options: Any) -> list[StoredEvent]:
        stored = super().events(*args, **options)
        self.read += len(stored)
        return stored


def test_as_many_jobs_are_kept_as_their_candidates_leave_room_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_history, "LEAST_WEIGHT", 2)
    monkeypatch.setattr(job_history, "KEPT_CANDIDATES", 20)
    jobs = [queued(service, m) for m in ("1", "2", "3")]
    counts = (9, 9, 1)
    queue = CountingQueue(service.state.database)
    reader = HistoryReader(queue)
    for job, count in zip(jobs, counts, strict=True):
        for event in candidates(count, trials=count):
            service.queue.add_event(job.id, event)
    for job in (*jobs, *jobs):
        assert len(reader.read(job).candidates) == counts[jobs.index(job)]
    assert queue.read == sum(counts), "all three are kept: 9, 9 and the least weight"

    for event in candidates(1, trials=10, first=9):
        service.queue.add_event(jobs[0].id, event)
    assert len(reader.read(jobs[0]).candidates) == 10, "only the new one is read; the second job is forgotten"
    assert queue.read == sum(counts) + 1
    reader.read(jobs[2])
    assert queue.read == sum(counts) + 1
    reader.read(jobs[1])
    assert queue.read == sum(counts) + 10


def test_a_job_that_is_larger_than_what_is_kept_is_kept_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_history, "KEPT_CANDIDATES", 3)
    job = queued(service, "1")
    for event in candidates(5, trials=5):
        service.queue.add_event(job.id, event)
    queue = CountingQueue(service.state.database)
    reader = HistoryReader(queue)
    assert [len(reader.read(job).candidates) for _ in range(2)] == [5, 5]
    assert queue.read == 5
