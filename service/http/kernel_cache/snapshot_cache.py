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
from tirgemm.tuning_db.revoked_artifacts import revoked_names

# What another process changes is seen after so long.
MAX_AGE_SECONDS = 1.0
EVER_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The version of the stored kernels, the devices of the live workers, where there is none of all that there were,
    and what is revoked, all of one moment."""

    kernel_version: int
    devices: tuple[Device, ...]
    revoked: frozenset[str] = frozenset()


class SnapshotCache:
    """Reads a snapshot at most once in MAX_AGE_SECONDS, however many ask; equal snapshots are one object."""

    def __init__(self, queue: JobQueue, alive_seconds: float, memory: GroupMemory) -> None:
        self._queue = queue
        self._alive_seconds = alive_seconds
        self._memory = memory
        self._snapshot: DatabaseSnapshot | None = None
        self._taken_at = float("-inf")
        self._asked = self._taking_for = memory.refreshes
        self._taking: asyncio.Task[DatabaseSnapshot] | None = None

    async def snapshot(self) -> DatabaseSnapshot:
        """The newest snapshot. Raises StoreError."""
        asked = self._memory.refreshes
        if self._snapshot is not None and time.monotonic() - self._taken_at <= MAX_AGE_SECONDS and asked == self._asked:
            return self._snapshot
        # One that began before a refresh was asked for is not the newest.
        if self._taking is None or self._taking.done() or self._taking_for != asked:
            self._taking, self._taking_for = asyncio.create_task(self._take(asked), name="snapshot"), asked
        return await asyncio.shield(self._taking)

    def expire(self) -> None:
        """Have the next request read again, in each process of this service: what it is to see was just told to a
        client."""
        self._memory.ask_for_refresh()

    async def _take(self, asked: bytes) -> DatabaseSnapshot:
        begun = time.monotonic()
        snapshot = await run_in_threadpool(self._read)
        if self._snapshot is None or snapshot != self._snapshot:
            self._snapshot = snapshot
        self._taken_at, self._asked = begun, asked
        return self._snapshot

    def _read(self) -> DatabaseSnapshot:
        with self._queue.db.read() as connection:
            version = read_version(connection)
            workers = self._queue.workers_seen(connection, self._alive_seconds)
            workers = workers or self._queue.workers_seen(connection, EVER_SECONDS)
        devices = tuple(device for worker in workers for device in worker.devices)
        return DatabaseSnapshot(version, devices, frozenset(revoked_names(self._queue.db)))
