"""Uvicorn's HTTP protocol on h11, bounded: connections, the time and size of headers, and readers that do not read."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tirgemm.service.http.problems import Problem, respond
from tirgemm.service.server.connection_limits import (
    RESERVED_SECONDS,
    ConnectionLimits,
    ProbesAlone,
    counted_address,
    too_many,
)
from tirgemm.service.server.refusals import Refusals
from tirgemm.service.settings import MAX_HEADER_BYTES, REQUEST_SECONDS

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn._types import ASGI3Application


class LimitedProtocol(H11Protocol):
    """One connection. Beyond ``limits`` it is answered one probe, within ``reserved_seconds``, and else refused with
    503; 408 where a request's headers are not whole after ``header_seconds``, 431 where they are too long; aborted
    where nothing was read from it for ``send_seconds``."""

    limits: ConnectionLimits
    refusals: Refusals
    header_seconds = REQUEST_SECONDS
    reserved_seconds = RESERVED_SECONDS
    send_seconds = REQUEST_SECONDS

    # The limit that it is beyond, as a sentence.
    _excess = ""
    _header_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        address = counted_address(self.client)
        self._excess = self.limits.excess(address)
        if not self._excess:
            self.limits.take(self, address)
        elif self.limits.reserve(self):
            self.app = cast("ASGI3Application", ProbesAlone(cast("ASGIApp", self.app), self._excess, self._count))
        else:
            self.give_way()
            return
        self._watch_headers()

    @property
    def is_silent(self) -> bool:
        """Whether no request has come whole, but for its body, and no answer has begun."""
        return self.conn.their_state is h11.IDLE

    def give_way(self) -> None:
        """Refuse it as one connection too many, and close it."""
        self._refuse(too_many(self._excess))

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.release(self)
        for timer in (self._header_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch_headers()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, in place of the plain text ``msg``."""
        del msg
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == 431:
            self._refuse(Problem(431, f"the headers are over {MAX_HEADER_BYTES} bytes, which is the limit"))
        else:
            self._refuse(Problem(400, "this is no HTTP/1.1 request"))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def _watch_headers(self) -> None:
        """Give the headers of a request that has begun, or of the first one, their time."""
        if not self.is_silent:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None
        elif self._header_timer is None:
            seconds = self.reserved_seconds if self._excess else self.header_seconds
            self._header_timer = self.loop.call_later(seconds, self._headers_late)

    def _headers_late(self) -> None:
        if self._excess:
            self.give_way()
            return
        detail = f"the headers did not arrive within {self.header_seconds:g} seconds"
        self._refuse(Problem(408, detail))

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent and self._send_timer is None:
            self._send_timer = self.loop.call_later(self.send_seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._send_timer = None
        before, now = self._unsent, self.transport.get_write_buffer_size()
        if now and now >= before:
            self.transport.abort()
        else:
            self._watch_reader()

    def _count(self, problem: Problem) -> None:
        self.refusals.take(problem, self.client[0] if self.client else "an unknown address")

    def _refuse(self, problem: Problem) -> None:
        """Answer with its document, unless an answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        self._count(problem)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = {"Connection": "close"} | problem.headers
            answer = respond("/", problem.status, problem.code, problem.detail, headers)
            start = h11.Response(status_code=problem.status, headers=answer.raw_headers)
            for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._watch_reader()


def limited_protocol(max_connections: int, max_of_address: int, refusals: Refusals) -> type[LimitedProtocol]:
    """The protocol of a server that takes so many connections at once, and so many of one address; ``refusals`` counts
    the others."""
    limits = ConnectionLimits(max_connections, max_of_address)
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits, "refusals": refusals})
