"""``SnapshotCache``: the state of the database that answers of stored kernels depend on, read once a second for all
requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool

from tirgemm.device import Device
from tirgemm.service.group_memory import GroupMemory
from tirgemm.tuning_db import JobQueue
from tirgemm.tuning_db.answers.kernel_version import read_version

# What another process changes is seen after so long.
LOOK_SECONDS = 1.0
EVER_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The version of the stored kernels, and the devices of the live workers, where there is none of all that there
    were, all of one moment."""

    kernel_version: int
    devices: tuple[Device, ...]


class SnapshotCache:
    """Reads a snapshot at most once in LOOK_SECONDS, however many ask; equal snapshots are one object."""

    def __init__(self, queue: JobQueue, alive_seconds: float, memory: GroupMemory) -> None:
        self._queue = queue
        self._alive_seconds = alive_seconds
        self._memory = memory
        self._look: DatabaseSnapshot | None = None
        self._taken_at = float("-inf")
        self._asked = self._taking_for = memory.looks
        self._taking: asyncio.Task[DatabaseSnapshot] | None = None

    async def look(self) -> DatabaseSnapshot:
        """The newest snapshot. Raises StoreError."""
        asked = self._memory.looks
        if self._look is not None and time.monotonic() - self._taken_at <= LOOK_SECONDS and asked == self._asked:
            return self._look
        # One that began before a fresh look was asked for is none.
        if self._taking is None or self._taking.done() or self._taking_for != asked:
            self._taking, self._taking_for = asyncio.create_task(self._take(asked), name="look"), asked
        return await asyncio.shield(self._taking)

    def expire(self) -> None:
        """Have the next request read again, in each process of this service: what it is to see was just told to a
        client."""
        self._memory.ask_for_look()

    async def _take(self, asked: bytes) -> DatabaseSnapshot:
        begun = time.monotonic()
        look = await run_in_threadpool(self._read)
        if self._look is None or look != self._look:
            self._look = look
        self._taken_at, self._asked = begun, asked
        return self._look

    def _read(self) -> DatabaseSnapshot:
        with self._queue.db.read() as connection:
            version = read_version(connection)
            workers = self._queue.workers_seen(connection, self._alive_seconds)
            workers = workers or self._queue.workers_seen(connection, EVER_SECONDS)
        return DatabaseSnapshot(version, tuple(device for worker in workers for device in worker.devices))
