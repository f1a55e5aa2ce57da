"""A wait for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

# No claim of how fast anything is: it ends a test in which something never happens, on however busy a machine.
PATIENCE_S = 120.0


def until(condition: Callable[[], bool], pause: Callable[[], object] = lambda: time.sleep(0.01)) -> None:
    """Return once ``condition`` holds, which is looked at again after each ``pause``. Raises AssertionError where it
    does not come to hold within PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_S:g} s"
        pause()
