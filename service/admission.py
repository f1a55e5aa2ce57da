"""Admission control of slow requests: a concurrency limit and a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tirgemm.errors import QueueFull


class Admission:
    """``at_once`` are let in together, at most ``waiting`` wait; for one event loop."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._most_waiting = waiting
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a place and hold it for the block. Raises QueueFull where as many wait as may."""
        if self._places.locked() and self._waiting >= self._most_waiting:
            raise QueueFull(f"{self._waiting} requests wait for such work, which is the limit; ask again later")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()
