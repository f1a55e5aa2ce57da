"""``Refusals``: metrics and log lines of connections that the HTTP server refuses before the application has their
request (400, 408, 431, 503)."""

from __future__ import annotations

import logging
import time
from collections import Counter

from tirgemm.service.http.metrics import Metrics
from tirgemm.service.http.problems import Problem

logger = logging.getLogger("tirgemm.service")

# The labels of the metric of requests, as such a request has neither a method nor a route.
METHOD, ROUTE = "none", "refused"
# The shortest time between two log lines of one status.
LOG_SECONDS = 10.0


class Refusals:
    """Counts refused connections by status in ``metrics``, and logs them. For one thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._untold: Counter[int] = Counter()
        self._told_at: dict[int, float] = {}

    def take(self, problem: Problem, address: str) -> None:
        """Count one connection of a client at ``address``, refused with ``problem``."""
        status, now = problem.status, time.monotonic()
        self._metrics.requests.labels(METHOD, ROUTE, status).inc()
        self._untold[status] += 1
        if now - self._told_at.get(status, float("-inf")) >= LOG_SECONDS:
            count, self._told_at[status] = self._untold.pop(status), now
            since = "" if count == 1 else f", and {count - 1} before it"
            level = logging.WARNING if status == 503 else logging.INFO  # of others the client is at fault
            logger.log(level, "a connection of %s was refused with %d%s: %s", address, status, since, problem.detail)
