"""``Heartbeat`` of a worker's thread, which detects a hang, and ``CancelEvent``, whose every check is a beat of it."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from tirgemm.service.settings import HANG_SECONDS

logger = logging.getLogger("tirgemm.worker")


class Heartbeat:
    """When the working thread last got on. After ``limit_s`` seconds without a beat it hangs: ``check`` then logs where
    it stands and calls ``on_hang``, once a hang."""

    def __init__(self, limit_s: float = HANG_SECONDS, on_hang: Callable[[], None] = lambda: None) -> None:
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._thread = threading.get_ident()
        self._at = time.monotonic()
        self._told = False

    def begin(self) -> None:
        """Make the calling thread the one that works."""
        self._thread = threading.get_ident()
        self.beat()

    def beat(self) -> None:
        """Say that work goes on; of another thread than the working one it says nothing."""
        if threading.get_ident() == self._thread:
            self._at, self._told = time.monotonic(), False

    def check(self) -> bool:
        """Whether work goes on."""
        silence = time.monotonic() - self._at
        if silence <= self._limit_s:
            return True
        if not self._told:
            self._told = True
            frame = sys._current_frames().get(self._thread)
            at = "".join(traceback.format_stack(frame)) if frame is not None else "in no thread that runs\n"
            logger.error("this worker hangs: nothing went on for %.0f s. It stands at:\n%s", silence, at)
            self._on_hang()
        return False


class CancelEvent(threading.Event):
    """An event that work looks at now and then to hear that it must stop: each look is a beat of ``heartbeat``."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        super().__init__()
        self._heartbeat = heartbeat

    def is_set(self) -> bool:
        self._heartbeat.beat()
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._heartbeat.beat()
        return super().wait(timeout)
