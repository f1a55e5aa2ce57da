"""Requests whose target is a whole URL, as proxies send them (RFC 9112, 3.2.2), as ASGI middleware."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_TARGET = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)


class AbsoluteForm:
    """Serve ``GET http://host/path`` as ``GET /path`` with that Host: the one of its header does not count."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _TARGET.fullmatch(scope.get("raw_path") or b"")
        if match is not None:
            host, path = match[1], match[2] or b"/"
            headers = [(b"host", host), *((name, value) for name, value in scope["headers"] if name != b"host")]
            scope = {**scope, "path": unquote(path.decode("latin-1")), "raw_path": path, "headers": headers}
        await self.app(scope, receive, send)
