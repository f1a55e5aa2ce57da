"""What is refused before its request has come whole: counted, and told to the log a few times a minute."""

from __future__ import annotations

import logging
import time
from collections import Counter

from tirgemm.service.http.metrics import Metrics
from tirgemm.service.http.problems import Problem

logger = logging.getLogger("tirgemm.service")

# What such a request counts under, whose method and route nobody knows.
METHOD, ROUTE = "none", "refused"
# The log has one line of a status in so long, whatever comes.
LOG_SECONDS = 10.0


class Refusals:
    """Refusals by status, in ``metrics`` and in the log. For one thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._untold: Counter[int] = Counter()
        self._told_at: dict[int, float] = {}

    def take(self, problem: Problem, address: str) -> None:
        """Count one, of a client at ``address``."""
        status, now = problem.status, time.monotonic()
        self._metrics.requests.labels(METHOD, ROUTE, status).inc()
        self._untold[status] += 1
        if now - self._told_at.get(status, float("-inf")) >= LOG_SECONDS:
            count, self._told_at[status] = self._untold.pop(status), now
            since = "" if count == 1 else f", and {count - 1} before it"
            level = logging.WARNING if status == 503 else logging.INFO  # of others the client is at fault
            logger.log(level, "a connection of %s was refused with %d%s: %s", address, status, since, problem.detail)
