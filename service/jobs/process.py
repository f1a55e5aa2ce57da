"""An orderly end of a process of the service on a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

GRACE_SECONDS = 10.0


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, SIGINT, and SIGHUP of a terminal that is closed, which ``nohup`` has ignored."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hangup]


def on_termination(stop: Callable[[], None]) -> None:
    """Call ``stop`` at an ending signal; a second one, or ten seconds without an end, end the process at once."""
    numbers = ending_signals()

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        deadline = threading.Timer(GRACE_SECONDS, os._exit, (128 + number,))
        deadline.daemon = True
        deadline.start()
        # From a thread: the main one may hold the very lock that an Event takes to be set.
        threading.Thread(target=stop, name="stop", daemon=True).start()

    for each in numbers:
        signal.signal(each, handle)
