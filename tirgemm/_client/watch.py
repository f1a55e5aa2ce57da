"""Event stream of one job or batch of a service, resumed where it breaks; polling where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from tirgemm._client.http import Outage, ServiceConnection, backoff, is_temporary, retry_after, unreachable
from tirgemm._client.resource_path import NOUNS, Resource, path_of
from tirgemm._client.server_events import ReceivedEvent, StreamAllowance
from tirgemm._extras import needed_by
from tirgemm.errors import Cancelled, ServiceError, ServiceUnreachable
from tirgemm.status import ENDED, LIVE

with needed_by("tirgemm.Client"):
    import httpx

POLL_SECONDS = 1.0
# A stream that was open for so long was a stream, though nothing happened: a job may wait for hours.
STEADY_SECONDS = 1.0


def live_document(session: ServiceConnection, name: str, of: Resource = "jobs") -> dict[str, Any]:
    """The document of a job or batch. Raises ServiceError for one that says no status: nobody could tell when it
    ends."""
    document = session.request("GET", path_of(of, name)).body
    if document.get("status") not in (*LIVE, *ENDED):
        what = f"{NOUNS[of]} {name}"
        raise ServiceError(f"{session.url} answered without the status of {what}; is it a tirgemm service?")
    return document


def watch(
    session: ServiceConnection, name: str, after: int = 0, deadline: float = math.inf, of: Resource = "jobs"
) -> Iterator[ReceivedEvent]:
    """The events of a job or batch from behind the event ``after``, each once, until it is finished or ``deadline`` has
    passed.

    ``deadline`` is a time of ``time.monotonic``. Raises ServiceError where there is no such one, and ServiceUnreachable
    where for longer than the session's patience the service stays away, or ends each stream at once without news.
    """
    lost_at, attempt, finished, streamed = 0.0, 0, False, False
    last: ReceivedEvent | None = None
    outage, allowance = Outage(session.url, session.patience), StreamAllowance(session.url)
    while time.monotonic() < deadline:
        opened, ended, asked = math.inf, 0.0, 0.0
        try:
            with session.events(path_of(of, name, "/events"), after, allowance, deadline) as stream:
                opened, streamed = time.monotonic(), True
                for event in stream:
                    # The end of a job that ended under an older service has the id of the event before it.
                    if event.id and event.id <= after and event.kind not in ENDED:
                        continue
                    # Who follows a batch is told how it stands whenever it comes back, which is no news by itself.
                    if last is None or (event.kind, event.data) != (last.kind, last.data):
                        lost_at, attempt = 0.0, 0
                    after, last = max(after, event.id), event
                    yield event
                    if event.kind in ENDED:
                        return
            ended = time.monotonic()
            if finished:
                return
            finished = live_document(session, name, of).get("status") in ENDED
            failure: Exception = ServiceError(
                f"{session.url} ended the event stream of {NOUNS[of]} {name} before the {NOUNS[of]} did, with nothing "
                f"new in it, which is put up with for {session.patience:g} s; does a proxy cut streams?"
            )
        except httpx.TransportError as error:
            # A proxy may keep a stream, with its headers, until it ends: then the documents still come.
            if isinstance(error, httpx.ReadTimeout) and not streamed and time.monotonic() < deadline:
                yield from _poll(session, name, deadline, of)
                return
            failure = error
        except ServiceUnreachable:
            raise
        except ServiceError as error:
            if error.http_status is None:  # it sends more than it may
                raise
            if not is_temporary(error):
                yield from _poll(session, name, deadline, of)
                return
            failure, asked = error, retry_after(error)
        session.refuse_closed(failure)
        now = time.monotonic()
        # How long the stream was, whatever time its document then took.
        if (ended or now) - opened >= STEADY_SECONDS:
            lost_at, attempt = 0.0, 0
        if not lost_at:
            lost_at, outage = now, Outage(session.url, session.patience)
        if now - lost_at > session.patience:
            raise unreachable(session.url, failure, now - lost_at) from failure
        outage.tell(failure, now - lost_at)
        session.pause(min(max(backoff(attempt), asked), deadline - now))
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
        raise ServiceError(f"{what} is done, but its kernel was deleted or revoked; ask again", job)
    kernel = job.get("kernel") or job.get("fallback")
    if not isinstance(kernel, (dict, str)):
        raise ServiceError(f"{what} is {status} and has no kernel yet; wait longer, or ask again later", job)
    return kernel


def _poll(session: ServiceConnection, name: str, deadline: float, of: Resource) -> Iterator[ReceivedEvent]:
    """The document once a second as an event ``job`` or ``batch``; at its end an event named by its status."""
    while True:
        job = live_document(session, name, of)
        yield ReceivedEvent(0, NOUNS[of], job)
        if job.get("status") in ENDED:
            error = job.get("error") if isinstance(job.get("error"), dict) else None
            told = f"{error.get('code')}: {error.get('detail')}" if error else None
            yield ReceivedEvent(0, str(job["status"]), job | {"error": told})
            return
        if time.monotonic() >= deadline:
            return
        session.pause(min(POLL_SECONDS, deadline - time.monotonic()))
