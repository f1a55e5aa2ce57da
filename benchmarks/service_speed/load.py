"""Load over HTTP/1.1: connections kept alive, on each one request after the other, in asyncio on uvloop."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

from tirgemm.errors import ServiceError


@dataclass(frozen=True)
class Turn:
    """What one turn came to: answers a second, and how long the median and the slowest hundredth took, in ms."""

    per_second: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, latencies: Iterable[float], took: float) -> Turn:
        """That of answers which took so long each, in seconds, and ``took`` so long together."""
        known = sorted(latencies)
        p50, p99 = known[len(known) // 2], known[math.ceil(0.99 * len(known)) - 1]
        return cls(round(len(known) / took, 1), round(1e3 * p50, 3), round(1e3 * p99, 3))


def drive(port: int, requests: Sequence[bytes], connections: int, seconds: float, seed: int) -> Turn:
    """Send requests, drawn at random, over so many connections for so long. Raises ServiceError for an answer that is
    not 200."""
    return uvloop.run(_drive(port, requests, connections, seconds, seed))


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _drive(port: int, requests: Sequence[bytes], connections: int, seconds: float, seed: int) -> Turn:
    loop = asyncio.get_running_loop()
    draw = random.Random(seed)
    ways: list[_Connection] = []
    for _ in range(connections):
        _, way = await loop.create_connection(lambda: _Connection(requests, draw), "127.0.0.1", port)
        ways.append(way)
    begun = time.perf_counter()
    stop_at = begun + seconds
    for way in ways:
        way.start(stop_at)
    await asyncio.gather(*(way.ended for way in ways))
    took = time.perf_counter() - begun
    for way in ways:
        way.close()
    return Turn.of((latency for way in ways for latency in way.latencies), took)


class _Connection(asyncio.Protocol):
    """One connection: the next request is sent when the answer before is whole."""

    def __init__(self, requests: Sequence[bytes], draw: random.Random) -> None:
        self._requests = requests
        self._draw = draw
        self._answer = bytearray()
        self._expected = 0
        self._sent_at = self._stop_at = 0.0
        self.latencies: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self, stop_at: float) -> None:
        """Send until ``stop_at``, by ``time.perf_counter``."""
        self._stop_at = stop_at
        self._send()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not self._expected:
            end = self._answer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._answer[:end]).lower()
            if not head.startswith(b"http/1.1 200 "):
                self._fail(f"the service answered {head.splitlines()[0].decode()}")
                return
            self._expected = end + 4 + int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(self._answer) < self._expected:
            return
        now = time.perf_counter()
        self.latencies.append(now - self._sent_at)
        if now < self._stop_at:
            self._send()
        elif not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._fail("the service closed a connection")

    def _send(self) -> None:
        self._answer.clear()
        self._expected = 0
        self._sent_at = time.perf_counter()
        self._transport.write(self._draw.choice(self._requests))

    def _fail(self, message: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(ServiceError(message))
