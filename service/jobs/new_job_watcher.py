"""``NewJobWatcher``: wakes an idle worker soon after a job is queued, by a query that is cheaper than a claim."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from tirgemm.errors import StoreError
from tirgemm.tuning_db import JobQueue

# How often a worker claims: what is put back, or was held by a worker that died, is no new job.
POLL_SECONDS = 0.1
# How often it looks for a new one, which takes a small part of a claim's time, and no lock.
LOOK_SECONDS = 0.025


class NewJobWatcher:
    """The jobs that come to a queue while its worker, which stops once ``stop`` is set, has none."""

    def __init__(self, queue: JobQueue, stop: threading.Event) -> None:
        self._queue = queue
        self._stop = stop
        self._newest: int | None = None

    def wait(self) -> None:
        """Return after POLL_SECONDS, or when a job has come since the last time, or when stopped."""
        deadline = time.monotonic() + POLL_SECONDS
        while not self._stop.wait(LOOK_SECONDS) and time.monotonic() < deadline:
            with suppress(StoreError):  # which the next claim will say
                before, self._newest = self._newest, self._queue.newest()
                if before != self._newest:
                    return
