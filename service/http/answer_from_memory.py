"""Answers of known kernels given from memory, as ASGI middleware.

To route, parse and check a request takes several times as long as to find its answer.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.service.http.known_answers import PATH
from tirgemm.service.http.prefer import wait_preference
from tirgemm.service.http.state import ServiceState


class AnswerFromMemory:
    """Answer a request for a kernel from the known answers, else ask the application."""

    def __init__(self, app: ASGIApp, state: ServiceState) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        message = await receive()
        body, whole = message.get("body", b""), not message.get("more_body", False)
        if whole and headers.get(b"content-type") == b"application/json":
            answer = await self.state.known.find(body, scope["state"]["caller"])
            if answer is not None:
                self.state.metrics.answers.labels("memory").inc()
                most = self.state.settings.max_wait_seconds
                _, applied = wait_preference(headers.get(b"prefer", b"").decode("latin-1"), most)
                await answer.response(applied)(scope, receive, send)
                return
        waiting = [message]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, replay, send)
