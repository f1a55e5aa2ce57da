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
        self._jumped_at = -math.inf

    def look(self, now: float) -> None:
        """Remember what the database's clock says at this moment."""
        with self._lock:
            here = self._monotonic()
            if self._last is not None and now - self._last[0] > here - self._last[1] + JUMP_S:
                self._jumped_at = here
            self._last = now, here

    def tells(self, lease_s: float) -> bool:
        """Whether a lease that has run out by the database's clock is that of a dead worker."""
        with self._lock:
            return self._monotonic() >= self._jumped_at + lease_s
