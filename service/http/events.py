"""Server-sent events of a job, resumable by id, and of a batch, told anew to whoever comes back; each to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi.concurrency import run_in_threadpool
from fastapi.sse import ServerSentEvent

from tirgemm.events import event_from_json
from tirgemm.service.http.documents import JobError
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.state import ServiceState
from tirgemm.tuning_db.queue.batch_totals import BatchStates

PAGE = 500
RETRY_MS = 500
# How long a stream that is to beat is silent at most. A browser's EventSource does not show comments to the page.
BEAT_SECONDS = 4.0
BEAT = ServerSentEvent(event="alive", data={})


def last_event_id(value: str, name: str = "Last-Event-ID") -> int:
    """The event to go on behind, which was given as ``name``. Raises the 422 problem for what this service never gave
    out as an id."""
    if not value:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise Problem(422, f"{name} is {value[:80]!r}; it must be the id of an event", "invalid_request")
    return int(value)


async def stream(state: ServiceState, job_id: str, after: int, *, beats: bool) -> AsyncIterator[ServerSentEvent]:
    """Every event behind ``after``, then new ones as they come, then the end: ``done``, ``failed`` or ``cancelled``;
    with ``beats`` a BEAT first, and after each BEAT_SECONDS without an event.

    The end is made from the job itself, so that it cannot be missing; it is told again to whoever comes back later.
    """
    retry: int | None = RETRY_MS
    if beats:
        yield BEAT
    with state.watch.follow(job_id) as feed:
        while not state.stopping.is_set():
            changed, ended = feed.changed, feed.ended
            if not feed.seen:
                if not await _happens(changed, beats=beats):
                    yield BEAT
                continue
            if after < feed.floor:
                events = await run_in_threadpool(state.queue.events, job_id, after, PAGE)
            else:
                events = feed.behind(after)
            for event in events:
                yield ServerSentEvent(id=str(event.id), event=event.kind, data=event.data, retry=retry)
                after, retry = event.id, None
            if events:
                continue
            if ended:
                break
            if not await _happens(changed, beats=beats):
                yield BEAT
        else:
            return
    end = await run_in_threadpool(_end, state, job_id)
    if end is not None:
        kind, data = end
        yield ServerSentEvent(id=str(after + 1), event=kind, data=data, retry=retry)


async def stream_batch(
    state: ServiceState, batch_id: str, after: int, *, beats: bool
) -> AsyncIterator[ServerSentEvent]:
    """The batch as it is, then whenever one of its problems changes its state, the last time when it ends; ``beats`` as
    of a job."""
    told: BatchStates | None = None
    retry: int | None = RETRY_MS
    if beats:
        yield BEAT
    # Who else begins to follow the batch wakes everybody, and puts off no beat.
    silent_since = time.monotonic()
    with state.watch.follow_batch(batch_id) as feed:
        first = feed.ask()
        while not state.stopping.is_set():
            changed, news = feed.changed, feed.news
            if feed.answered < first or (news is not None and news.states == told):
                if not await _happens(changed, beats=beats, since=silent_since):
                    yield BEAT
                    silent_since = time.monotonic()
                continue
            if news is None:
                return
            after, told = after + 1, news.states
            yield ServerSentEvent(id=str(after), event=news.kind, raw_data=news.data, retry=retry)
            retry, silent_since = None, time.monotonic()
            if news.kind != "progress":
                return


async def _happens(changed: asyncio.Event, *, beats: bool, since: float | None = None) -> bool:
    """Wait for a change; False where a beat is due before it, by default counted from now."""
    passed = 0.0 if since is None else time.monotonic() - since
    try:
        await asyncio.wait_for(changed.wait(), BEAT_SECONDS - passed if beats else None)
    except TimeoutError:
        return False
    return True


def _end(state: ServiceState, job_id: str) -> tuple[str, dict[str, Any]] | None:
    """The kind and the data of the last event; None where the job is gone."""
    job = state.queue.job(job_id)
    if job is None:
        return None
    state.recent.expire()
    kernel = state.store.kernel_by_id(job.kernel_id) if job.kernel_id else None
    error = JobError.of(job.error) if job.error else None
    told = f"{error.code}: {error.detail}" if error else None
    said: dict[str, Any] = {"kernel": job.kernel_id, "error": told, "at": job.finished_at}
    if kernel is not None:
        said |= {"config": str(kernel.config), "timings": kernel.timings.to_json()}
    return job.status, event_from_json(job.status, said).to_json()
