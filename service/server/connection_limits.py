"""``ConnectionLimits``: how many connections a server process takes, of all and of one address; beyond, a reserve for
probes.

Without the reserve, clients that hold all connections, doing nothing or following events, would have whatever watches
over the service restart it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.service.http.problems import Problem, respond

# Connections beyond the limits that are held at once, and how long each of them has for the headers of its request.
RESERVED = 16
RESERVED_SECONDS = 2.0
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})


class ReservedConnection(Protocol):
    """A connection of the reserve."""

    @property
    def is_silent(self) -> bool:
        """Whether it has asked for nothing yet."""

    def give_way(self) -> None:
        """Refuse it and close it."""


class ConnectionLimits:
    """The connections of one server process: at most ``most``, of one address at most ``most_of_address``, and
    RESERVED beyond. Of one address are those that ``counted_address`` calls the same."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self.most = most
        self.most_of_address = most_of_address
        self._taken: dict[object, str] = {}
        self._of_address: Counter[str] = Counter()
        self._reserved: dict[ReservedConnection, None] = {}

    def excess(self, address: str) -> str:
        """The limit that one more connection of an address is beyond, as a sentence; empty where there is none."""
        if len(self._taken) >= self.most:
            return f"the service has {self.most} connections, which is its limit; try again"
        if address and self._of_address[address] >= self.most_of_address:
            return (
                f"{address} has {self.most_of_address} connections, which is the limit for one address "
                "(TIRGEMM_MAX_CONNECTIONS_PER_ADDRESS); try again"
            )
        return ""

    def take(self, connection: object, address: str) -> None:
        """Count a connection within the limits."""
        self._taken[connection] = address
        self._of_address[address] += 1

    def reserve(self, connection: ReservedConnection) -> bool:
        """Take a connection beyond the limits into the reserve, in the place of the oldest silent one where that is
        full; False where all of it are being answered."""
        if len(self._reserved) >= RESERVED:
            silent = next((one for one in self._reserved if one.is_silent), None)
            if silent is None:
                return False
            del self._reserved[silent]
            silent.give_way()
        self._reserved[connection] = None
        return True

    def release(self, connection: ReservedConnection) -> None:
        """Forget a connection that is closed."""
        self._reserved.pop(connection, None)
        address = self._taken.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]


def counted_address(client: tuple[str, int] | None) -> str:
    """The address that the connections of a client count under: of IPv6 the network of 64 bits, all of which one host
    has. Empty on loopback, where a proxy may stand for everybody, and where there is no address."""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0] if client else "")
    except ValueError:
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return ""
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)


def too_many(excess: str) -> Problem:
    """The problem of a connection that is beyond a limit."""
    return Problem(503, excess, "too_many_connections", {"Retry-After": "1", "Connection": "close"})


class ProbesAlone:
    """The application of a connection of the reserve: it answers one probe, or refuses another request, and has the
    connection closed. A probe has no body, which could be waited for."""

    def __init__(self, app: ASGIApp, excess: str, on_refused: Callable[[Problem], None]) -> None:
        self.app = app
        self.excess = excess
        self.on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_probe(scope):
            refused = too_many(self.excess)
            self.on_refused(refused)
            answer = respond(scope["path"], refused.status, refused.code, refused.detail, refused.headers)
            await answer(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, send_last)


def _is_probe(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
    return scope["method"] in ("GET", "HEAD") and scope["path"] in PROBES and not has_body
