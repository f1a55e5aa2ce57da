"""Process plumbing of the service: die with the parent, end orderly on a signal."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 10.0


def die_with(parent: int) -> None:
    """Have the kernel send this process SIGTERM when ``parent``, which started it, is gone (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        # It died before it could be watched.
        os.kill(os.getpid(), signal.SIGTERM)


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
