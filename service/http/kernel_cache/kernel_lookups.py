"""Lookups of known kernels: on SQLite at once, on the event loop; else in batches, where requests that arrive while one
is under way are looked up together in the next."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from tirgemm.errors import StoreUnavailable
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.answers.stored_answers import PreparedLookup, StoredAnswer, WantedAnswer, stored_answers

# So many fill a batch: the first of them waits for the last.
AT_ONCE = 64
# A lookup on the event loop that takes longer is slow; on a busy machine one may be, which says nothing of the next.
SLOW_SECONDS = 0.005
# After slow ones in a row that took so long together, as on a slow disk, or one that found the database locked, kernels
# are looked up in threads for so many times as long: all other requests stood still meanwhile.
TOO_SLOW_SECONDS, RESPITE, LONGEST_RESPITE_SECONDS = 0.01, 100, 600.0


class KernelLookups:
    """Looks kernels up: one by one where SQLite answers within SLOW_SECONDS, which takes less time than a thread; else
    one batch after the other, in a thread of the pool. For the event loop's thread alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._prepared = PreparedLookup(database) if database.is_sqlite else None
        self._in_threads_until, self._slow_seconds = float("-inf"), 0.0
        self._waiting: list[tuple[WantedAnswer, asyncio.Future[StoredAnswer | None]]] = []
        self._working: asyncio.Task[None] | None = None

    async def find(self, wanted: WantedAnswer) -> StoredAnswer | None:
        """The stored answer, read after this call; None where there is none. Raises StoreError."""
        if self._prepared is not None and time.monotonic() >= self._in_threads_until:
            with suppress(StoreUnavailable):  # the database is locked, and a thread can wait
                return self._find_at_once(self._prepared, wanted)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StoredAnswer | None] = loop.create_future()
        self._waiting.append((wanted, answer))
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work(), name="lookups")
        return await answer

    def _find_at_once(self, prepared: PreparedLookup, wanted: WantedAnswer) -> StoredAnswer | None:
        begun, least = time.monotonic(), 0.0
        try:
            return prepared.find(wanted)
        except StoreUnavailable:
            least = TOO_SLOW_SECONDS
            raise
        finally:
            ended = time.monotonic()
            seconds = max(ended - begun, least)
            self._slow_seconds = self._slow_seconds + seconds if seconds >= SLOW_SECONDS else 0.0
            if self._slow_seconds >= TOO_SLOW_SECONDS:
                self._in_threads_until = ended + min(RESPITE * self._slow_seconds, LONGEST_RESPITE_SECONDS)
                self._slow_seconds = 0.0

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            try:
                read = await asyncio.to_thread(stored_answers, self._database, [wanted for wanted, _ in batch])
            except Exception as error:  # each of them says it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), stored in zip(batch, read, strict=True):
                if not answer.done():
                    answer.set_result(stored)
