"""Settings of Python's garbage collector for processes that build kernels.

Python looks for cycles of dead objects after every 700 new ones, at times among all that there are. While TVM is
imported that is a third of the time, and none are dead.
"""

from __future__ import annotations

import atexit
import gc

_NEW_OBJECTS = 100_000


def collect_seldom() -> None:
    """Collect after every 100,000 new objects, and not at the end; for programs, not for who imports this package."""
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    # The interpreter would look for cycles among all that is left, a tenth of a second with TVM's modules.
    atexit.register(gc.freeze)
