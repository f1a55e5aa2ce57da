"""``FullDisk``: the pauses of a worker that has no space left to write to, in which it claims nothing."""

from __future__ import annotations

import logging
import time

from tirgemm.errors import StorageFull
from tirgemm.events import Phase, PhaseEntered
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.disk_space import is_full

logger = logging.getLogger("tirgemm.worker")

# The first one, and then each twice as long up to the longest, until something large is written again.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
# What a job is told that waits for its end.
FULL = PhaseEntered(phase=Phase.WAITING, detail="for space on the disk of the service")


class FullDisk:
    """Begins a pause at each StorageFull, and goes on with it while the disk of the database or its blobs is full."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._until: float | None = None
        self._pauses = 0

    def met(self, error: StorageFull) -> None:
        """Begin a pause, but for one that goes on."""
        if self.is_over():
            self._pause(str(error))

    def is_over(self) -> bool:
        """Whether jobs may be claimed."""
        if self._until is None:
            return True
        if time.monotonic() < self._until:
            return False
        if is_full(self._database.blobs.folder) or self._database.is_full:
            self._pause("the disk is still full")
            return False
        self._until = None
        return True

    def written(self) -> None:
        """Say that a job could be brought to its end: the next pause is a first one."""
        self._pauses = 0

    def _pause(self, words: str) -> None:
        seconds = min(FIRST_PAUSE_SECONDS * 2**self._pauses, LONGEST_PAUSE_SECONDS)
        self._until, self._pauses = time.monotonic() + seconds, min(self._pauses + 1, 8)
        logger.warning("no job is claimed for %.0f s: %s", seconds, words)
