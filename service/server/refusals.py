"""``Refusals``: metrics and log lines of connections that the HTTP server refuses before the application has their
request (400, 408, 431, 503)."""

from __future__ import annotations

import logging

from tirgemm.service.http.metrics import Metrics
from tirgemm.service.http.problems import Problem
from tirgemm.service.log_lines import RefusalLog

# The labels of the metric of requests, as such a request has neither a method nor a route.
METHOD, ROUTE = "none", "refused"


class Refusals:
    """Counts refused connections by status in ``metrics``, and logs them. For one thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = RefusalLog()

    def take(self, problem: Problem, address: str) -> None:
        """Count one connection of a client at ``address``, refused with ``problem``."""
        status = problem.status
        self._metrics.requests.labels(METHOD, ROUTE, status).inc()
        level = logging.WARNING if status == 503 else logging.INFO  # of others the client is at fault
        self._log.note(status, f"a connection of {address} was refused with {status}", problem.detail, level)
