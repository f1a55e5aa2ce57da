"""The heartbeat of a running job: keeps its lease, and stops the work when the job is no longer ours to do."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Literal

from tirgemm.errors import StoreError
from tirgemm.service.jobs.heartbeat import CancelEvent, Heartbeat
from tirgemm.tuning_db import JobQueue

logger = logging.getLogger("tirgemm.worker")

LeaseEnd = Literal["", "cancelled", "lost", "released"]


class Lease:
    """Renews the lease of one job from a thread. ``cancel`` is set, with a ``reason``, when the work must stop.

    The work of a lease ``within`` another one's is released when that one stops. The lease of work that hangs, by
    ``heartbeat``, is not renewed.
    """

    def __init__(
        self,
        queue: JobQueue,
        job_id: str,
        owner: str,
        seconds: float,
        heartbeat: Heartbeat,
        *,
        within: Lease | None = None,
    ) -> None:
        self.cancel: threading.Event = CancelEvent(heartbeat)
        self._heartbeat = heartbeat
        self.reason: LeaseEnd = ""
        self._queue = queue
        self._job_id = job_id
        self._owner = owner
        self._seconds = seconds
        self._within = within
        self._inner: Lease | None = None
        self._closed = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{job_id}", daemon=True)

    def stop(self, reason: LeaseEnd) -> None:
        """Ask for the work to stop; the first reason holds."""
        with self._lock:
            self.reason = self.reason or reason
            self.cancel.set()
            if self._inner is not None:
                self._inner.stop("released")

    @property
    def job_ids(self) -> list[str]:
        """The jobs that are held: that of the lease within this one, if there is one, then its own."""
        with self._lock:
            return [*(self._inner.job_ids if self._inner is not None else ()), self._job_id]

    def __enter__(self) -> Lease:
        self._thread.start()
        if self._within is not None:
            self._within._hold(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._within is not None:
            self._within._hold(None)
        self._closed.set()
        self._thread.join()

    def _hold(self, inner: Lease | None) -> None:
        with self._lock:
            self._inner = inner
            if inner is not None and self.cancel.is_set():
                inner.stop("released")

    def _beat(self) -> None:
        # Also how soon a cancellation is seen, so no slower than twice a second.
        while not self._closed.wait(min(self._seconds / 5, 0.5)):
            if not self._heartbeat.check():
                continue
            try:
                state = self._queue.heartbeat(self._job_id, self._owner, self._seconds)
            except StoreError as error:
                # The next beat tries again; if none gets through, another worker takes the job over when it runs out.
                logger.warning("heartbeat of job %s: %s", self._job_id, error)
                continue
            if state != "ok":
                self.stop(state)
                return
