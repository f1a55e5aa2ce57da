"""The limit on request bodies, as ASGI middleware: also for chunked bodies, which announce no length."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.service.http.problems import respond
from tirgemm.service.settings import REQUEST_SECONDS


class BodyLimit:
    """Read a whole body of at most ``limit`` bytes within ``seconds`` before the application runs, else 413 or 408.

    ``longer``: the limits of requests, by method and path, that may have longer bodies.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        seconds: float = REQUEST_SECONDS,
        longer: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self.app = app
        self.limit = limit
        self.longer = longer or {}
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self.longer.get((scope["method"], scope["path"]), self.limit)
        too_long = ("body_too_large", f"the body is over {limit} bytes, which is the limit")
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            await self._refuse(scope, receive, send, 413, *too_long)
            return
        try:
            async with asyncio.timeout(self.seconds):
                messages = await self._read(receive, limit)
        except TimeoutError:
            detail = f"the body did not arrive within {self.seconds:g} seconds"
            await self._refuse(scope, receive, send, 408, "request_timeout", detail)
            return
        if messages is None:
            await self._refuse(scope, receive, send, 413, *too_long)
            return
        pending = iter(messages)

        async def replay() -> Message:
            for message in pending:
                return message
            return await receive()

        await self.app(scope, replay, send)

    @staticmethod
    async def _read(receive: Receive, limit: int) -> list[Message] | None:
        """The messages of one body, or None where it is longer than ``limit``."""
        messages: list[Message] = []
        size = 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > limit:
                return None
            if message["type"] != "http.request" or not message.get("more_body", False):
                return messages

    @staticmethod
    async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, code: str, detail: str) -> None:
        # What is left of the body is not read, so the connection cannot carry another request.
        response = respond(scope["path"], status, code, detail, {"Connection": "close"})
        await response(scope, receive, send)
