"""Following one job of a service: its event stream, resumed where it breaks, or polling where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tirgemm._http import RETRIED_STATUSES, Event, Session, backoff, unreachable
from tirgemm.errors import ServiceError

FINISHED = frozenset({"done", "failed", "cancelled"})
POLL_SECONDS = 1.0


def job_document(session: Session, job_id: str) -> dict[str, Any]:
    return session.request("GET", f"/v1/jobs/{job_id}").body


def watch(session: Session, job_id: str, after: int = 0, deadline: float = math.inf) -> Iterator[Event]:
    """The job's events from behind the event ``after``, each once, until it is finished or ``deadline`` has passed.

    ``deadline`` is a time of ``time.monotonic``. Raises ServiceError where there is no such job, or where the service
    stays away for longer than the session's patience.
    """
    lost_at, attempt, finished = 0.0, 0, False
    while time.monotonic() < deadline:
        try:
            with session.events(f"/v1/jobs/{job_id}/events", after, deadline) as stream:
                lost_at = 0.0
                for event in stream:
                    if event.id and event.id <= after:
                        continue
                    after, attempt = max(after, event.id), 0
                    yield event
                    if event.kind in FINISHED:
                        return
            if finished:
                return
            finished = job_document(session, job_id).get("status") in FINISHED
            failure: Exception = ServiceError(f"the event stream of job {job_id} ended before the job did")
        except httpx.TransportError as error:
            failure = error
        except ServiceError as error:
            if error.http_status not in RETRIED_STATUSES:
                job_document(session, job_id)
                yield from _poll(session, job_id, deadline)
                return
            failure = error
        now = time.monotonic()
        lost_at = lost_at or now
        if now - lost_at > session.patience or session.closed:
            raise unreachable(session.url, failure, session.patience) from failure
        session.pause(min(backoff(attempt), deadline - now))
        attempt += 1


def _poll(session: Session, job_id: str, deadline: float) -> Iterator[Event]:
    """The job document once a second as an event ``job``; at its end an event named by its status."""
    while True:
        job = job_document(session, job_id)
        yield Event(0, "job", job)
        if job.get("status") in FINISHED:
            yield Event(0, str(job["status"]), job)
            return
        if time.monotonic() >= deadline:
            return
        session.pause(min(POLL_SECONDS, deadline - time.monotonic()))
