"""Token buckets of API keys: so many requests a second, with bursts of as many; in memory that several processes may
share."""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from functools import lru_cache


class SharedBuckets:
    """The token buckets of all keys, in BYTES of ``memory`` from ``start`` on, zeros at first.

    Nothing is locked: where two processes take from one bucket within the same microsecond, or two new keys get one
    place, a token too many is given out, which a limit can bear and a lock whose holder is stopped cannot.
    """

    _SLOT = struct.Struct("=Qddd")  # the key's mark, the rate, the tokens, and of when they are
    SLOTS, PROBES = 4096, 8
    BYTES = SLOTS * _SLOT.size

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start

    def take(self, key_id: str, rate: float, now: float) -> int:
        """Take a token from the bucket of a key: 0, or where there is none the whole seconds until there is one again,
        at least 1. It gets ``rate`` tokens a second and keeps as many, at least 1; where the rate is new it is full.
        ``now`` is in seconds of any one clock."""
        mark, most = _mark(key_id), max(1.0, rate)
        place, had, tokens, at = self._find(mark)
        tokens = min(most, tokens + max(0.0, now - at) * rate) if had == rate else most
        seconds = 0 if tokens >= 1 else max(1, math.ceil((1 - tokens) / rate))
        self._SLOT.pack_into(self._memory, place, mark, rate, tokens - (seconds == 0), now)
        return seconds

    def _find(self, mark: int) -> tuple[int, float, float, float]:
        """The place of a bucket and what is in it; for a new one a free place, else that which was longest unused."""
        oldest, oldest_at = self._start, math.inf
        for probe in range(self.PROBES):
            place = self._start + (mark + probe) % self.SLOTS * self._SLOT.size
            owner, rate, tokens, at = self._SLOT.unpack_from(self._memory, place)
            if owner == mark:
                return place, rate, tokens, at
            if owner == 0:
                return place, 0.0, 0.0, 0.0
            if at < oldest_at:
                oldest, oldest_at = place, at
        return oldest, 0.0, 0.0, 0.0


@lru_cache(maxsize=4096)
def _mark(key_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(key_id.encode(), digest_size=8).digest()) or 1
