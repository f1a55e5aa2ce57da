"""Token buckets: so many requests a second, with bursts of as many; and the buckets of all keys, in memory that several
processes may share."""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from functools import lru_cache


class TokenBucket:
    """``rate`` tokens a second, of which at most ``rate`` (at least 1) are kept. Times are seconds of any one clock."""

    def __init__(self, rate: float, now: float, tokens: float | None = None) -> None:
        self.rate = rate
        self._most = max(1.0, rate)
        self.tokens = self._most if tokens is None else tokens
        self.at = now

    def take(self, now: float) -> int:
        """Take a token: 0, or where there is none the whole seconds until there is one again, at least 1."""
        self.tokens = min(self._most, self.tokens + max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0
        return max(1, math.ceil((1 - self.tokens) / self.rate))


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
        """As ``TokenBucket.take`` from the bucket of a key, full where its rate is new."""
        mark = _mark(key_id)
        place, had, tokens, at = self._find(mark)
        bucket = TokenBucket(rate, at, tokens) if had == rate else TokenBucket(rate, now)
        seconds = bucket.take(now)
        self._SLOT.pack_into(self._memory, place, mark, rate, bucket.tokens, bucket.at)
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
