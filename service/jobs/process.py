"""An orderly end of a process of the service on a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

GRACE_SECONDS = 10.0


def on_termination(stop: Callable[[], None]) -> None:
    """Call ``stop`` at SIGTERM or SIGINT; a second signal, or ten seconds without an end, end the process at once."""

    def handle(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        deadline = threading.Timer(GRACE_SECONDS, os._exit, (128 + number,))
        deadline.daemon = True
        deadline.start()
        # From a thread: the main one may hold the very lock that an Event takes to be set.
        threading.Thread(target=stop, name="stop", daemon=True).start()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
