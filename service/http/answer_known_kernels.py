"""Answers of known kernels given before the routes, as ASGI middleware: from memory, else from the database.

To route a request and to solve its dependencies takes longer than to find its answer.
"""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.errors import TirgemmError
from tirgemm.service.http.kernel_cache.known_answers import PATH, KnownAnswer
from tirgemm.service.http.prefer import wait_preference
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.request_bodies import KernelRequest
from tirgemm.service.http.requests import stored_answer, unique_members
from tirgemm.service.http.state import ServiceState
from tirgemm.tuning_db.access.api_keys import ApiKey

# Made once: to make one takes longer than to read a body. Of another encoding than UTF-8 the route reads it.
_DECODER = json.JSONDecoder(object_pairs_hook=unique_members)


class AnswerKnownKernels:
    """Answer a request for a kernel that is known and asks for no job, else ask the application; that, too, for one
    that may have been sent before."""

    def __init__(self, app: ASGIApp, state: ServiceState) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != PATH or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if b"idempotency-key" in headers:
            await self.app(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body", False):
            message = await receive()
            body += message.get("body", b"")
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if message["type"] == "http.request" and media_type == b"application/json":
            answer = await self._known(body, scope["state"]["caller"])
            if answer is not None:
                most = self.state.settings.max_wait_seconds
                _, applied = wait_preference(headers.get(b"prefer", b"").decode("latin-1"), most)
                await answer.response(applied)(scope, receive, send)
                return
        waiting = [{**message, "body": body} if message["type"] == "http.request" else message]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, replay, send)

    async def _known(self, body: bytes, caller: ApiKey | None) -> KnownAnswer | None:
        """The answer to a body; None where there is none, and where the route has to say what is wrong."""
        known, answers = self.state.known_answers, self.state.metrics.answers
        answer = await known.find(body, caller)
        if answer is not None:
            answers.labels("memory").inc()
            return answer
        try:
            asked = KernelRequest.model_validate(_DECODER.decode(body.decode()))
            self.state.access.require_priority(caller, asked.queue.priority)
            seen = await known.state()
            answer = await stored_answer(self.state, asked, seen.snapshot.devices)
        except (ValueError, RecursionError, Problem, TirgemmError):
            return None
        if answer is not None:
            answers.labels("database").inc()
            known.keep(body, answer, seen)
        return answer
