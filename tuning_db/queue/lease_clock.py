"""``LeaseClock``: whether the database's clock tells who is dead, or has jumped ahead of the time that passed here."""

from __future__ import annotations

import math
import threading

from tirgemm.tuning_db.times import Clock

# A clock that is only set right by some milliseconds has not jumped.
JUMP_S = 1.0


class LeaseClock:
    """Compares the database's clock with ``monotonic``, which stands still while this machine is suspended.

    After a suspend, or where the database's clock was set ahead, every lease has run out, though its worker lives and
    renews it as soon as it can. So nobody is dead for the length of one lease, of the time that passes here. Safe from
    several threads.
    """

    def __init__(self, monotonic: Clock) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last: tuple[float, float] | None = None
        self._not_before = -math.inf

    def tells(self, now: float, lease_s: float) -> bool:
        """Whether a lease that has run out at ``now``, by the database's clock, is that of a dead worker."""
        with self._lock:
            here = self._monotonic()
            if self._last is not None and now - self._last[0] > here - self._last[1] + JUMP_S:
                self._not_before = here + lease_s
            self._last = now, here
            return here >= self._not_before
