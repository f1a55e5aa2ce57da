"""Checks of Host and Origin, as ASGI middleware: no page in a browser may speak to the service by its user's hand.

A page of another site can send requests to an address on loopback, and by a name of its own that it resolves to
127.0.0.1 (DNS rebinding) it may read the answers too. A browser names the page's site in Origin and the name in Host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from tirgemm.service.http.problems import Problem, respond
from tirgemm.tuning_db.access.audit import AuditEntry

if TYPE_CHECKING:
    from tirgemm.service.http.state import ServiceState

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.IGNORECASE)
_IMPLIED_PORTS = {"http": 80, "https": 443}
# What may be an attempt to use the service by a user's browser.
_COUNTED = frozenset({403, 421})


def own_names(listening: str, further: str) -> frozenset[str]:
    """The names that Host may hold: this machine's, the one that is listened on, and ``further`` ones with commas."""
    machine = _normal(socket.gethostname())
    names = {"localhost", machine, machine.partition(".")[0], *map(_normal, (listening, *further.split(",")))}
    return frozenset(names - {""})


class HostCheck:
    """Refuse a request whose Host is neither an IP address nor one of ``names`` with 421, one from another origin with
    403, and headers of more than ``header_bytes`` with 431. ``*`` among the names is any name. What is refused for its
    name or origin is counted in the audit log."""

    def __init__(self, app: ASGIApp, names: frozenset[str], header_bytes: int, state: ServiceState) -> None:
        self.app = app
        self.names = names
        self.header_bytes = header_bytes
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope)
        if refused is None:
            await self.app(scope, receive, send)
            return
        if refused.status in _COUNTED:
            client = scope.get("client")
            address = client[0] if client else ""
            self.state.access.count_refusal(AuditEntry(None, scope["method"], "*", refused.status, address))
        answer = respond(scope["path"], refused.status, refused.code, refused.detail, {"Connection": "close"})
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = sum(len(name) + len(value) + 4 for name, value in headers) + len(scope.get("raw_path", b""))
        if size + len(scope["query_string"]) > self.header_bytes:
            return Problem(431, f"the headers are over {self.header_bytes} bytes, which is the limit")
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        shown = ", ".join(hosts)[:200]
        if len(hosts) > 1 or (hosts and not self._is_ours(hosts[0])):
            names = ", ".join(sorted(self.names))
            detail = f"Host is {shown!r}; this service answers to IP addresses and {names} (TIRGEMM_HOSTS)"
            return Problem(421, detail, "misdirected_request")
        for origin in (value.decode("latin-1") for name, value in headers if name == b"origin"):
            if not hosts or not _same(origin, hosts[0]):
                detail = f"Origin is {origin[:200]!r} and Host {shown!r}: pages of other sites may not use this service"
                return Problem(403, f"{detail}; a proxy must pass Host on as the browser sent it", "cross_origin")
        return None

    def _is_ours(self, host: str) -> bool:
        match = _AUTHORITY.fullmatch(host)
        if match is None:
            return False
        name = _normal(match[1])
        return "*" in self.names or name in self.names or _is_address(name)


def _normal(name: str) -> str:
    """A name as it is compared: in lower case, without the dot that makes it absolute."""
    return name.strip().lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _same(origin: str, host: str) -> bool:
    """Whether a page at ``host`` has that origin; the scheme, and a port that goes without saying, may be a proxy's."""
    try:
        parts, ours = urlsplit(origin), urlsplit(f"//{host}")
        implied = _IMPLIED_PORTS[parts.scheme]
        ports = parts.port or implied, ours.port or implied
    except (ValueError, KeyError):
        return False
    return "@" not in parts.netloc and parts.hostname == ours.hostname and ports[0] == ports[1]
