"""``AccessControl``: the API keys in memory, when they were used, what they may use, and what is to be audited."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from fastapi.concurrency import run_in_threadpool

from tirgemm.errors import PriorityRefused, StoreError
from tirgemm.service.access.rate_limit import SharedBuckets
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.access.api_keys import ApiKey, KeyTable, Quotas
from tirgemm.tuning_db.access.audit import AuditEntry, AuditLog
from tirgemm.tuning_db.access.quotas import Asker

logger = logging.getLogger("tirgemm.service")

# What another process changes, such as `tirgemm keys revoke`, is seen after so long.
CACHE_SECONDS = 2.0
# How long who is let in already waits for the keys to be read again.
PATIENCE_SECONDS = 0.5
# Last uses and counted refusals are written once in so long.
FLUSH_SECONDS = 60.0
# So many different refusals are told apart between two writes; of more only the number is known.
MAX_REFUSALS = 64
# Values of a few numbers, asked for at every request.
_over = lru_cache(maxsize=1024)(Quotas.over)


class AccessControl:
    """Who may ask a service. All keys are read at once and kept for CACHE_SECONDS, so that neither a valid key nor a
    wrong one costs a look into the database; ``table`` and ``audit`` are the tables."""

    def __init__(self, database: Database, settings: Settings, stopping: asyncio.Event, buckets: SharedBuckets) -> None:
        self.table = KeyTable(database)
        self.audit = AuditLog(database)
        self.defaults = Quotas(
            settings.key_requests_per_second,
            settings.key_live_jobs,
            settings.key_trials_a_day,
            settings.key_bytes_stored,
            settings.key_batch_problems_a_day,
        )
        self._key_priority = settings.key_priority
        self._stopping = stopping
        self._keys: dict[str, ApiKey] = {}
        self._read_at = float("-inf")
        self._clock_ahead = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._buckets = buckets
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}
        self._refusals: Counter[AuditEntry] = Counter()
        self._flusher: asyncio.Task[None] | None = None

    async def keys(self) -> dict[str, ApiKey]:
        """Every key that there ever was by its hash; empty: keys are off. Raises StoreError."""
        return await self._read_within(CACHE_SECONDS)

    async def still_admits(self, key: ApiKey | None) -> bool:
        """Whether who was let in with ``key``, None where keys were off, would be let in now, by keys that were read
        half as long ago as others are taken: who is asked about is asked about again and again.

        While the database does not answer, or not within PATIENCE_SECONDS, the keys that were read last count: it can
        neither revoke a key nor tell anything new.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                keys = await self._read_within(CACHE_SECONDS / 2)
        except (StoreError, TimeoutError):
            keys = self._keys
        if key is None:
            return not keys
        known = keys.get(key.sha256)
        return known is not None and not known.fault(self.now())

    async def _read_within(self, seconds: float) -> dict[str, ApiKey]:
        """The keys as they were at most so long ago. Raises StoreError."""
        if time.monotonic() - self._read_at > seconds:
            # One look for everybody who waits: the database may be slow.
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(run_in_threadpool(self.read), name="keys")
            await asyncio.shield(self._reading)
        return self._keys

    def read(self) -> None:
        """Read the keys from the database now."""
        keys = {key.sha256: key for key in self.table.entries()}
        with self.table.db.read() as connection:
            self._clock_ahead = self.table.db.now(connection) - time.time()
        self._keys, self._read_at = keys, time.monotonic()

    def now(self) -> float:
        """Seconds since 1970 by the database's clock, by which keys expire."""
        return time.time() + self._clock_ahead

    def quotas(self, key: ApiKey) -> Quotas:
        """What a key may use."""
        return _over(key.quotas, self.defaults)

    def asker(self, key: ApiKey | None) -> Asker | None:
        """The key with its quotas on jobs."""
        if key is None:
            return None
        quotas = self.quotas(key)
        assert quotas.live_jobs is not None
        assert quotas.trials_a_day is not None
        assert quotas.bytes_stored is not None
        assert quotas.batch_problems_a_day is not None
        return Asker(key.id, quotas.live_jobs, quotas.trials_a_day, quotas.bytes_stored, quotas.batch_problems_a_day)

    def allowed_priority(self, key: ApiKey | None, priority: int) -> int:
        """The priority, or the highest that ``key`` may give a job."""
        return priority if key is None or key.allows("admin") else min(priority, self._key_priority)

    def require_priority(self, key: ApiKey | None, priority: int) -> None:
        """Raise PriorityRefused where ``key`` may not give a job this priority."""
        if priority > self.allowed_priority(key, priority):
            raise PriorityRefused(
                f"priority is {priority}; a key of the scope tune may give at most {self._key_priority}, one of the "
                "scope admin any"
            )

    def spend(self, key: ApiKey) -> int:
        """Count a request of a valid key: 0, or the seconds until it may ask again."""
        rate, now = self.quotas(key).requests_per_second, time.monotonic()
        assert rate is not None
        with self._lock:
            self._used[key.id] = self.now()
        self._flush_soon()
        return self._buckets.take(key.id, rate, now)

    def count_refusal(self, entry: AuditEntry) -> None:
        """Count a refusal; equal ones become one row."""
        with self._lock:
            if entry not in self._refusals and len(self._refusals) >= MAX_REFUSALS:
                entry = replace(entry, action="*", object="*", address="*")
            self._refusals[entry] += 1
        self._flush_soon()

    async def record(self, entry: AuditEntry) -> None:
        """Write an entry of the audit log now; where the database refuses it, to the service's log."""
        try:
            await run_in_threadpool(self.audit.add, [entry])
        except StoreError as error:
            logger.error("not in the audit log: %s: %s", entry, error)

    def flush(self) -> None:
        """Write the last uses and the counted refusals; what the database refuses is kept for the next time."""
        with self._lock:
            used, self._used = self._used, {}
            refusals, self._refusals = self._refusals, Counter()
        try:
            self.table.used(used)
            used = {}
            self.audit.add([replace(entry, count=count) for entry, count in refusals.items()])
        except StoreError as error:
            logger.error("neither last uses of keys nor refusals are written: %s", error)
            with self._lock:
                self._used = used | self._used
                self._refusals.update(refusals)

    def _flush_soon(self) -> None:
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush_later(), name="access")

    async def _flush_later(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), FLUSH_SECONDS)
        await run_in_threadpool(self.flush)
