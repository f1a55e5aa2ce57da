"""HEAD for every path that answers GET, as ASGI middleware: the same answer without its body (RFC 9110, 9.3.2)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Ask the application with GET, and let nothing of its body through; a stream ends when its headers are sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        # A range is of the body that GET would send: HEAD has none (RFC 9110, 14.2).
        headers = [(name, value) for name, value in scope["headers"] if name not in (b"range", b"if-range")]
        answered = False

        async def send_head(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def receive_until_answered() -> Message:
            return {"type": "http.disconnect"} if answered else await receive()

        await self.app({**scope, "method": "GET", "headers": headers}, receive_until_answered, send_head)
