"""The limit on request bodies, as ASGI middleware: also for chunked bodies, which announce no length."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.service.http.problems import respond
from tirgemm.service.settings import REQUEST_SECONDS


class BodyLimit:
    """Read a whole body of at most ``limit`` bytes within ``seconds`` before the application runs, else 413 or 408."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float = REQUEST_SECONDS) -> None:
        self.app = app
        self.limit = limit
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self.limit:
            await self._refuse(scope, receive, send, 413)
            return
        try:
            async with asyncio.timeout(self.seconds):
                messages = await self._read(receive)
        except TimeoutError:
            await self._refuse(scope, receive, send, 408)
            return
        if messages is None:
            await self._refuse(scope, receive, send, 413)
            return
        pending = iter(messages)

        async def replay() -> Message:
            for message in pending:
                return message
            return await receive()

        await self.app(scope, replay, send)

    async def _read(self, receive: Receive) -> list[Message] | None:
        """The messages of one body, or None where it is too long."""
        messages: list[Message] = []
        size = 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > self.limit:
                return None
            if message["type"] != "http.request" or not message.get("more_body", False):
                return messages

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, status: int) -> None:
        code, detail = {
            413: ("body_too_large", f"the body is over {self.limit} bytes, which is the limit"),
            408: ("request_timeout", f"the body did not arrive within {self.seconds:g} seconds"),
        }[status]
        # What is left of the body is not read, so the connection cannot carry another request.
        response = respond(scope["path"], status, code, detail, {"Connection": "close"})
        await response(scope, receive, send)
