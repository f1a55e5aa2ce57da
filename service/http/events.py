"""Server-sent events of a job, resumable by id, and of a batch, told anew to whoever comes back; each to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from anyio import BrokenResourceError
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import ServerSentEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from tirgemm.events import event_from_json
from tirgemm.service.access.access_control import AccessControl
from tirgemm.service.http.documents import JobError
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.state import ServiceState
from tirgemm.tuning_db.access.api_keys import ApiKey
from tirgemm.tuning_db.queue.batch_totals import BatchStates

logger = logging.getLogger("tirgemm.service")

PAGE = 500
RETRY_MS = 500
# How long a stream that is to beat is silent at most. A browser's EventSource does not show comments to the page.
BEAT_SECONDS = 4.0
BEAT = ServerSentEvent(event="alive", data={})
# How long a stream waits at most before its key is looked at again.
CHECK_SECONDS = 1.0


class LeftStreams:
    """ASGI middleware that ends a stream whose client has left while an event waited to be sent: FastAPI raises
    BrokenResourceError then, which the server would log as a fault of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except* BrokenResourceError:
            logger.debug("the client of %s has left", scope["path"])


def last_event_id(value: str, name: str = "Last-Event-ID") -> int:
    """The event to go on behind, which was given as ``name``. Raises the 422 problem for what this service never gave
    out as an id."""
    if not value:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise Problem(422, f"{name} is {value[:80]!r}; it must be the id of an event", "invalid_request")
    return int(value)


class Follower:
    """Who follows a stream: with ``beats`` it gets a BEAT first, and after each BEAT_SECONDS without an event; it is
    ``admitted`` as long as the key that it came with, None where keys were off, is valid."""

    def __init__(self, access: AccessControl, key: ApiKey | None, *, beats: bool) -> None:
        self.beats = beats
        self._access = access
        self._key = key
        self._told_at = time.monotonic()

    async def admitted(self) -> bool:
        """Whether it may be told more."""
        return await self._access.still_admits(self._key)

    def told(self) -> None:
        """Note that it is sent something at this moment."""
        self._told_at = time.monotonic()

    async def awaits_beat(self, changed: asyncio.Event) -> bool:
        """Wait for a change, at most CHECK_SECONDS; whether it is to be sent a BEAT then."""
        silent = time.monotonic() - self._told_at
        seconds = min(CHECK_SECONDS, max(0.0, BEAT_SECONDS - silent)) if self.beats else CHECK_SECONDS
        try:
            await asyncio.wait_for(changed.wait(), seconds)
        except TimeoutError:
            if self.beats and time.monotonic() - self._told_at >= BEAT_SECONDS and await self.admitted():
                self.told()
                return True
        return False


async def stream(state: ServiceState, job_id: str, after: int, follower: Follower) -> AsyncIterator[ServerSentEvent]:
    """Every event behind ``after``, then new ones as they come, then the end: ``done``, ``failed`` or ``cancelled``;
    nothing more once ``follower`` is no longer admitted.

    The end is made from the job itself, so that it cannot be missing; it is told again, with the same id, to whoever
    comes back later. Behind that id is what happens once the job is put back.
    """
    retry: int | None = RETRY_MS
    if follower.beats:
        yield BEAT
    with state.watch.follow(job_id) as feed:
        while await follower.admitted() and not state.stopping.is_set():
            changed, ended, newest = feed.changed, feed.ended, feed.newest
            if not feed.seen:
                if await follower.awaits_beat(changed):
                    yield BEAT
                continue
            if after < (floor := feed.floor):
                events = await run_in_threadpool(state.queue.events, job_id, after, PAGE)
                # The row of an earlier end is no event: what is read is not looked for again.
                after = after if events else floor
            else:
                events = feed.behind(after)
            for event in events:
                if not await follower.admitted():
                    return
                follower.told()
                yield ServerSentEvent(id=str(event.id), event=event.kind, data=event.data, retry=retry)
                after, retry = event.id, None
            if events:
                continue
            if ended:
                break
            if await follower.awaits_beat(changed):
                yield BEAT
        else:
            return
    end = await run_in_threadpool(_end, state, job_id)
    if end is not None:
        kind, data = end
        yield ServerSentEvent(id=str(max(after, newest)), event=kind, data=data, retry=retry)


async def stream_batch(
    state: ServiceState, batch_id: str, after: int, follower: Follower
) -> AsyncIterator[ServerSentEvent]:
    """The batch as it is, then whenever one of its problems changes its state, the last time when it ends;
    ``follower`` as of a job."""
    told: BatchStates | None = None
    retry: int | None = RETRY_MS
    if follower.beats:
        yield BEAT
    with state.watch.follow_batch(batch_id) as feed:
        first = feed.ask()
        while await follower.admitted() and not state.stopping.is_set():
            changed, news = feed.changed, feed.news
            if feed.answered < first or (news is not None and news.states == told):
                # Who else begins to follow the batch wakes everybody, and puts off no beat.
                if await follower.awaits_beat(changed):
                    yield BEAT
                continue
            if news is None:
                return
            after, told = after + 1, news.states
            follower.told()
            yield ServerSentEvent(id=str(after), event=news.kind, raw_data=news.data, retry=retry)
            retry = None
            if news.kind != "progress":
                return


def _end(state: ServiceState, job_id: str) -> tuple[str, dict[str, Any]] | None:
    """The kind and the data of the last event; None where the job is gone, or was put back."""
    job = state.queue.job(job_id)
    if job is None or not job.ended:
        return None
    state.snapshots.expire()
    kernel = state.store.kernel_by_id(job.kernel_id) if job.kernel_id else None
    error = JobError.of(job.error) if job.error else None
    told = f"{error.code}: {error.detail}" if error else None
    said: dict[str, Any] = {"kernel": job.kernel_id, "error": told, "at": job.finished_at}
    if kernel is not None:
        said |= {"config": str(kernel.config), "timings": kernel.timings.to_json()}
    return job.status, event_from_json(job.status, said).to_json()
