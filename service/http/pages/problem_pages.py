"""Problems as pages, as ASGI middleware: a browser that opens a page is shown what is wrong, or asked to sign in."""

from __future__ import annotations

import json
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.service.access.scopes import is_page
from tirgemm.service.http.accept import wants_html
from tirgemm.service.http.pages.login import MAX_TARGET_CHARS
from tirgemm.service.http.pages.site import SiteRequest
from tirgemm.service.http.problems import MEDIA_TYPE


class ProblemPages:
    """Turn problem documents, the answers of middleware within too, into pages where a page was asked for as HTML."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_shown(scope):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_shown(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                if Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE):
                    start = message
                    return
            elif start is not None:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await _shown(scope, start, body)(scope, receive, send)
                return
            await send(message)

        await self.app(scope, receive, send_shown)


def _is_shown(scope: Scope) -> bool:
    return is_page(scope["path"]) and wants_html(Headers(scope=scope).get("accept", ""))


def _shown(scope: Scope, start: Message, body: bytes) -> Response:
    """The page of a problem document; for one that asks for a key, the way to the form that takes it."""
    problem, headers = json.loads(body), Headers(raw=start["headers"])
    if problem["status"] == 401 and scope["method"] in ("GET", "HEAD"):
        if "hx-request" in Headers(scope=scope):
            # A part of a page: the whole one is asked for again, which leads to the form.
            return Response(status_code=401, headers={"HX-Refresh": "true", "Cache-Control": "no-store"})
        query = scope["query_string"].decode("latin-1")
        target = scope["path"] + (f"?{query}" if query else "")
        target = target if len(target) <= MAX_TARGET_CHARS else "/"
        return RedirectResponse(f"/login?next={quote(target, safe='')}", 303, {"Cache-Control": "no-store"})
    response = SiteRequest(Request(scope)).page("problem.html", problem["title"], problem["status"], problem=problem)
    response.headers.update({name: headers[name] for name in ("allow", "connection", "retry-after") if name in headers})
    return response
