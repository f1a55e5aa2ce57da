"""``publisher``: handler of a running job's events, which stores them in the job queue and in the worker's log."""

from __future__ import annotations

from tirgemm._terminal.progress_view import LineView
from tirgemm.events import CandidateRecorded, Ended, Event, EventHandler, FallbackStored
from tirgemm.service.jobs.job_failures import JobFailures
from tirgemm.tuning.records import Status
from tirgemm.tuning_db import JobQueue


def publisher(queue: JobQueue, job_id: str, owner: str, view: LineView, failures: JobFailures) -> EventHandler:
    """A handler that stores the events of a job that ``owner`` holds and shows them to ``view``. A measurement forgets
    how often the device failed the job."""

    def publish(event: Event) -> None:
        if isinstance(event, Ended):  # the job's own row says how it ended: that is told from there
            return
        view(event)
        if isinstance(event, CandidateRecorded) and event.status is Status.MEASURED:
            failures.of_device.pop(job_id, None)
        if not isinstance(event, FallbackStored):
            queue.add_event(job_id, event, owner)

    return publish
