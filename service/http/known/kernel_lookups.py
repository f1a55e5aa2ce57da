"""Batched lookups of known kernels: requests that arrive while one is under way are looked up together in the next."""

from __future__ import annotations

import asyncio

from tirgemm.tuning_db import Database
from tirgemm.tuning_db.answers.stored_answers import StoredAnswer, WantedAnswer, stored_answers

# So many fill a batch: the first of them waits for the last.
AT_ONCE = 64


class KernelLookups:
    """Looks kernels up, one batch after the other, in a thread of the pool. For the event loop's thread alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[WantedAnswer, asyncio.Future[StoredAnswer | None]]] = []
        self._working: asyncio.Task[None] | None = None

    async def find(self, wanted: WantedAnswer) -> StoredAnswer | None:
        """The stored answer, read after this call; None where there is none. Raises StoreError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StoredAnswer | None] = loop.create_future()
        self._waiting.append((wanted, answer))
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work(), name="lookups")
        return await answer

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
