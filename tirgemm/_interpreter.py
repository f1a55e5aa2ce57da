"""Settings of the Python interpreter for processes that build kernels, drive devices or answer requests.

Python looks for cycles of dead objects after every 700 new ones, at times among all that there are. While TVM is
imported that is a third of the time, and none are dead. A thread that waits for the interpreter gets it after 5 ms,
which is many answers of a server, and many steps of a search on another device.
"""

from __future__ import annotations

import atexit
import gc
import sys

_NEW_OBJECTS = 100_000
_SWITCH_SECONDS = 0.0005


def collect_seldom() -> None:
    """Collect after every 100,000 new objects, and not at the end; for programs, not for who imports this package."""
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    # The interpreter would look for cycles among all that is left, a tenth of a second with TVM's modules.
    atexit.register(gc.freeze)


def switch_often() -> None:
    """Let a thread that waits for the interpreter have it after half a millisecond; for programs with busy threads."""
    sys.setswitchinterval(_SWITCH_SECONDS)
