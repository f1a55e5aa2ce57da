"""``Watch``: one poller of the database for everybody who waits: for a job or a batch to change, or for a worker."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool

from tirgemm.service.http.batch_documents import BatchEventKind, BatchSummary
from tirgemm.status import ENDED, ENDED_BATCH
from tirgemm.tuning_db import JobProgress, JobQueue, StoredEvent
from tirgemm.tuning_db.queue.batch_totals import BatchStates, BatchTotals
from tirgemm.tuning_db.queue.batches import BatchTable

logger = logging.getLogger("tirgemm.service")

POLL_SECONDS = 0.05
# After a look that failed, for the database may not be there for a while.
FAILED_POLL_SECONDS = 0.5
# Of a batch many jobs are counted, and nothing hangs on the moment.
BATCH_POLL_SECONDS = 0.5
# Of each job so many of its newest events are kept for its followers; who is further behind reads the database.
KEPT_EVENTS = 1000


class Feed:
    """What the followers of one thing share. ``changed`` is set at the next change, and replaced by a fresh event: take
    it first, look, then wait for it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.followers = 0

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


F = TypeVar("F", bound=Feed)


class JobFeed(Feed):
    """What the followers of one job share: how far it is, and its newest events.

    ``progress`` is None until the first look (``seen``), and where the job is not there. Its followers can see every
    event up to the id ``newest``; those up to ``floor`` are not kept here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self.progress: JobProgress | None = None
        self.floor = 0
        self.newest = 0
        self._events: deque[StoredEvent] = deque()

    @property
    def ended(self) -> bool:
        return self.seen and (self.progress is None or self.progress.status in ENDED)

    def behind(self, after: int) -> list[StoredEvent]:
        """The kept events behind the id ``after``, oldest first."""
        return [event for event in self._events if event.id > after]

    def update(self, progress: JobProgress | None, events: list[StoredEvent]) -> None:
        """Take in what a poll found, and wake the followers where it is something new. As many as KEPT_EVENTS may not
        be all that there are."""
        newest = progress.newest_event if progress is not None else 0
        if self.seen and progress == self.progress:
            return
        if not self.seen or len(events) >= KEPT_EVENTS:
            self._events.clear()
            self.floor, events = newest, []
        self._events += events
        while len(self._events) > KEPT_EVENTS:
            self.floor = self._events.popleft().id
        self.newest = max(self.newest, newest, events[-1].id if events else 0)
        self.progress, self.seen = progress, True
        self.wake()


@dataclass(frozen=True, slots=True)
class BatchNews:
    """An event of a batch for all its followers: its states, and its summary as JSON."""

    states: BatchStates
    kind: BatchEventKind
    data: str

    @classmethod
    def of(cls, batch: BatchTotals) -> BatchNews:
        kind: BatchEventKind = batch.status if batch.status in ENDED_BATCH else "progress"
        return cls(BatchStates.of(batch), kind, json.dumps(BatchSummary.of(batch).model_dump(mode="json")))


class BatchFeed(Feed):
    """What the followers of one batch share: its newest ``news``, None until the first look and where it is not there.

    Who comes asks for a look of its own, which it shares with all that come before it is taken: the newest news were
    made when the states last changed, and are old in all else. ``answered`` is the newest number that ``ask`` gave out
    before the last look.
    """

    def __init__(self) -> None:
        super().__init__()
        self.news: BatchNews | None = None
        self.asked = 0
        self.answered = 0

    def ask(self) -> int:
        """Have the batch looked at, whether or not its states have changed; the number of the question."""
        self.asked += 1
        return self.asked

    def is_due(self, states: BatchStates | None) -> bool:
        """Whether there is somebody to be told that the batch is in these states."""
        return self.answered < self.asked or states != (self.news and self.news.states)

    def update(self, news: BatchNews | None, answered: int) -> None:
        """Take in what was read after the question of this number, and wake the followers."""
        self.news, self.answered = news, answered
        self.wake()


class Watch:
    """Polls while anybody waits: one look at all jobs that are followed, whatever the number of followers; now and then
    one at all batches."""

    def __init__(self, queue: JobQueue, batches: BatchTable, alive_seconds: float, stopping: asyncio.Event) -> None:
        self._queue = queue
        self._batches = batches
        self._batch_feeds: dict[str, BatchFeed] = {}
        self._batches_seen = 0.0
        self._alive_seconds = alive_seconds
        self._stopping = stopping
        self._feeds: dict[str, JobFeed] = {}
        self._worker = Feed()
        self._poller: asyncio.Task[None] | None = None

    @property
    def followers(self) -> int:
        """How many follow jobs and batches at this moment."""
        return sum(feed.followers for feed in (*self._feeds.values(), *self._batch_feeds.values()))

    @property
    def polling(self) -> bool:
        """Whether the database is looked at, because somebody waits."""
        return self._poller is not None and not self._poller.done()

    def follow(self, job_id: str) -> AbstractContextManager[JobFeed]:
        """The feed of a job, shared with all its followers, until the end of the block."""
        return self._followed(self._feeds, job_id, JobFeed)

    def follow_batch(self, batch_id: str) -> AbstractContextManager[BatchFeed]:
        """The feed of a batch, shared with all its followers, until the end of the block; the batch is looked at at
        once."""
        self._batches_seen = 0.0
        return self._followed(self._batch_feeds, batch_id, BatchFeed)

    @contextmanager
    def _followed(self, feeds: dict[str, F], name: str, made: Callable[[], F]) -> Iterator[F]:
        feed = feeds.setdefault(name, made())
        feed.followers += 1
        self._start()
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                del feeds[name]

    async def worker(self, seconds: float) -> None:
        """Return once a worker is alive, or after ``seconds``."""
        self._worker.followers += 1
        self._start()
        try:
            await asyncio.wait_for(self._worker.changed.wait(), seconds)
        except TimeoutError:
            return
        finally:
            self._worker.followers -= 1

    def _start(self) -> None:
        if not self.polling:
            self._poller = asyncio.create_task(self._poll(), name="watch")

    async def _poll(self) -> None:
        failed = False
        while (self._feeds or self._batch_feeds or self._worker.followers) and not self._stopping.is_set():
            try:
                await self._look()
                failed = False
            except Exception as error:
                # Who waits goes on waiting: the next look may succeed, and the end of waiting is the client's.
                if not failed:
                    logger.warning("looking at the jobs that are followed: %s: %s", type(error).__name__, error)
                failed = True
            try:
                await asyncio.wait_for(self._stopping.wait(), FAILED_POLL_SECONDS if failed else POLL_SECONDS)
            except TimeoutError:
                continue
        for feed in (*self._feeds.values(), *self._batch_feeds.values(), self._worker):
            feed.wake()

    async def _look(self) -> None:
        followed = {job_id: feed.newest if feed.seen else None for job_id, feed in self._feeds.items()}
        if followed:
            for job_id, (progress, events) in (await run_in_threadpool(self._read, followed)).items():
                if job_id in self._feeds:
                    self._feeds[job_id].update(progress, events)
        if self._batch_feeds and time.monotonic() >= self._batches_seen + BATCH_POLL_SECONDS:
            self._batches_seen = time.monotonic()
            await self._look_at_batches(dict(self._batch_feeds))
        if self._worker.followers:
            workers = await run_in_threadpool(self._queue.live_workers, self._alive_seconds)
            if workers:
                self._worker.wake()

    async def _look_at_batches(self, feeds: dict[str, BatchFeed]) -> None:
        states = await run_in_threadpool(self._batches.states, list(feeds))
        due = {batch_id: feed.asked for batch_id, feed in feeds.items() if feed.is_due(states.get(batch_id))}
        news = await run_in_threadpool(self._news, list(due)) if due else {}
        for batch_id, asked in due.items():
            feeds[batch_id].update(news.get(batch_id), asked)

    def _news(self, batch_ids: list[str]) -> dict[str, BatchNews]:
        return {batch_id: BatchNews.of(totals) for batch_id, totals in self._batches.totals(batch_ids).items()}

    def _read(self, followed: dict[str, int | None]) -> dict[str, tuple[JobProgress | None, list[StoredEvent]]]:
        """How far each job is, then its events up to there: where it has ended, every event is among them."""
        progress = self._queue.progress(list(followed))
        read: dict[str, tuple[JobProgress | None, list[StoredEvent]]] = {}
        for job_id, newest in followed.items():
            now = progress.get(job_id)
            new = now is not None and newest is not None and now.newest_event > newest
            read[job_id] = now, self._queue.events(job_id, newest or 0, KEPT_EVENTS) if new else []
        return read
