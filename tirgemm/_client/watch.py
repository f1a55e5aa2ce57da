"""Event stream of one job of a service, resumed where it breaks; polling where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from tirgemm._client.http import RETRIED_STATUSES, Outage, ServiceConnection, backoff, unreachable
from tirgemm._client.server_events import ReceivedEvent, StreamAllowance
from tirgemm._extras import needed_by
from tirgemm.errors import Cancelled, ServiceError, ServiceUnreachable
from tirgemm.status import ENDED, LIVE

with needed_by("tirgemm.Client"):
    import httpx

POLL_SECONDS = 1.0


def job_document(session: ServiceConnection, job_id: str) -> dict[str, Any]:
    """The job document. Raises ServiceError for one that says no status: nobody could tell when it ends."""
    job = session.request("GET", f"/v1/jobs/{job_id}").body
    if job.get("status") not in (*LIVE, *ENDED):
        raise ServiceError(f"{session.url} answered without the status of job {job_id}; is it a tirgemm service?")
    return job


def watch(
    session: ServiceConnection, job_id: str, after: int = 0, deadline: float = math.inf
) -> Iterator[ReceivedEvent]:
    """The job's events from behind the event ``after``, each once, until it is finished or ``deadline`` has passed.

    ``deadline`` is a time of ``time.monotonic``. Raises ServiceError where there is no such job, and ServiceUnreachable
    where the service stays away for longer than the session's patience.
    """
    lost_at, attempt, finished = 0.0, 0, False
    outage, allowance = Outage(session.url, session.patience), StreamAllowance(session.url)
    while time.monotonic() < deadline:
        try:
            with session.events(f"/v1/jobs/{job_id}/events", after, allowance, deadline) as stream:
                lost_at, outage = 0.0, Outage(session.url, session.patience)
                for event in stream:
                    if event.id and event.id <= after:
                        continue
                    after, attempt = max(after, event.id), 0
                    yield event
                    if event.kind in ENDED:
                        return
            if finished:
                return
            finished = job_document(session, job_id).get("status") in ENDED
            failure: Exception = ServiceError(f"the event stream of job {job_id} ended before the job did")
        except httpx.TransportError as error:
            failure = error
        except ServiceUnreachable:
            raise
        except ServiceError as error:
            if error.http_status is None:  # it sends more than it may
                raise
            if error.http_status not in RETRIED_STATUSES:
                job_document(session, job_id)
                yield from _poll(session, job_id, deadline)
                return
            failure = error
        now = time.monotonic()
        lost_at = lost_at or now
        if now - lost_at > session.patience or session.closed:
            raise unreachable(session.url, failure, session.patience) from failure
        outage.tell(failure, now - lost_at)
        session.pause(min(backoff(attempt), deadline - now))
        attempt += 1


def kernel_of(job: dict[str, Any], job_id: str) -> dict[str, Any] | str:
    """The kernel, whole or by its id, that a job ended with, or that it has for now. Raises Cancelled, ServiceError."""
    status, what = job.get("status"), f"job {job_id} for {job.get('gemm')}"
    if status == "cancelled":
        raise Cancelled(f"{what} was cancelled")
    if status == "failed":
        error = job.get("error")
        reasons = error if isinstance(error, dict) else {}
        raise ServiceError(f"{what} failed: {reasons.get('detail') or 'no reason given'}", reasons)
    if status == "done" and not job.get("kernel"):
        raise ServiceError(f"{what} is done, but its kernel was deleted; ask again", job)
    kernel = job.get("kernel") or job.get("fallback")
    if not isinstance(kernel, (dict, str)):
        raise ServiceError(f"{what} is {status} and has no kernel yet; wait longer, or ask again later", job)
    return kernel


def _poll(session: ServiceConnection, job_id: str, deadline: float) -> Iterator[ReceivedEvent]:
    """The job document once a second as an event ``job``; at its end an event named by its status."""
    while True:
        job = job_document(session, job_id)
        yield ReceivedEvent(0, "job", job)
        if job.get("status") in ENDED:
            error = job.get("error") if isinstance(job.get("error"), dict) else None
            told = f"{error.get('code')}: {error.get('detail')}" if error else None
            yield ReceivedEvent(0, str(job["status"]), job | {"error": told})
            return
        if time.monotonic() >= deadline:
            return
        session.pause(min(POLL_SECONDS, deadline - time.monotonic()))
