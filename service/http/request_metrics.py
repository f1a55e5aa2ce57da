"""Counting of requests, an id for each, and log lines of malformed ones, as ASGI middleware around all others."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from functools import lru_cache

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.service.http.state import ServiceState
from tirgemm.service.log_lines import RefusalLog, request_id
from tirgemm.tuning.process import spans

# What the requests of a path that no route has are counted under.
UNMATCHED = "unmatched"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Refusals of malformed requests: bodies that are no JSON, ambiguous, too deep, too long, too slow or of another type,
# members and parameters that cannot be, methods that a route has not. Beside them paths that climb or have no route.
# Of keys, names and origins the audit log tells.
MALFORMED = frozenset({400, 405, 408, 411, 413, 414, 415, 422, 431, 501})


class RequestMetrics:
    """Give each request an id, which the log and the header ``X-Request-Id`` have, count what is answered, refusals
    too, and log a few refusals of what is malformed; ``routes`` are those whose templates requests count under."""

    def __init__(self, app: ASGIApp, state: ServiceState, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self.state = state
        self._patterns = [(route.path_regex, route.path) for route in routes if isinstance(route, Route)]
        self._template = lru_cache(maxsize=4096)(self._matched)
        self._refusals = RefusalLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.perf_counter()
        # In the context of this request's task, which its threads get too.
        own_id = secrets.token_hex(8)
        request_id.set(own_id)
        spans.annotate(request=own_id)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                metrics, route, status = self.state.metrics, self._template(scope["path"]), message["status"]
                # Labels stay for good: what a client makes up is none.
                method = scope["method"] if scope["method"] in METHODS else "other"
                metrics.requests.labels(method, route, status).inc()
                if status in MALFORMED or (status == 404 and (route == UNMATCHED or ".." in scope["path"])):
                    what = f"a request of {(scope.get('client') or ('nobody known',))[0]} was refused with {status}"
                    self._refusals.note(status, what, f"{method} {route}")
                metrics.seconds.labels(route).observe(time.perf_counter() - begun)
                # Of what is answered before the routes, too.
                spans.annotate(**{"http.route": route})
                message["headers"] = [*message["headers"], (b"x-request-id", own_id.encode())]
            await send(message)

        await self.app(scope, receive, send_counted)

    def _matched(self, path: str) -> str:
        return next((template for pattern, template in self._patterns if pattern.match(path)), UNMATCHED)
