"""Token buckets: so many requests a second, with bursts of as many."""

from __future__ import annotations

import math


class TokenBucket:
    """``rate`` tokens a second, of which at most ``rate`` (at least 1) are kept. Times are seconds of any one clock."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._most = max(1.0, rate)
        self._tokens = self._most
        self._at = now

    def take(self, now: float) -> int:
        """Take a token: 0, or where there is none the whole seconds until there is one again, at least 1."""
        self._tokens = min(self._most, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0
        return max(1, math.ceil((1 - self._tokens) / self.rate))
