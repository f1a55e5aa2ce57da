"""API key of a client: where it comes from, whom it is sent to, and the header that carries it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tirgemm._client.http_client import checked_url
from tirgemm._client.own_service import is_loopback
from tirgemm.errors import InvalidRequest

if TYPE_CHECKING:
    import httpx

LOG = logging.getLogger("tirgemm.client")
VARIABLE, PLAIN_VARIABLE = "TIRGEMM_KEY", "TIRGEMM_KEY_OVER_HTTP"
_PORTS = {"http": 80, "https": 443}
_SECRET = re.compile(r"[!-~]{1,512}")


class KeyHeader:
    """Adds ``Authorization: Bearer KEY`` to the requests for one service, and to no others; never shows the key."""

    def __init__(self, secret: str, url: str) -> None:
        parts = urlsplit(url)
        self._secret = secret
        self._target = (parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme))

    def __repr__(self) -> str:
        return "KeyHeader(...)"

    def add(self, request: httpx.Request) -> httpx.Request:
        """The request, with the key where it is for the service."""
        to = request.url
        if (to.scheme, to.host, to.port or _PORTS.get(to.scheme)) == self._target:
            request.headers["authorization"] = f"Bearer {self._secret}"
        return request


def key_header(url: str, key: str | None) -> KeyHeader | None:
    """The header for the service at ``url``; None where there is no key.

    ``key`` is by default what TIRGEMM_KEY holds. Over plain HTTP it goes to loopback only, unless
    TIRGEMM_KEY_OVER_HTTP is 1: one that was given is refused then with InvalidRequest, and one from the environment is
    left out with a warning. Raises InvalidRequest for what is no key, and for what is no address.
    """
    secret = os.environ.get(VARIABLE, "") if key is None else key
    if not secret and key is None:
        return None
    name = VARIABLE if key is None else "key"
    if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
        raise InvalidRequest(f"{name} is no API key: it must be 1 to 512 visible ASCII characters, without spaces")
    parts = urlsplit(checked_url(url))
    if parts.scheme == "https" or is_loopback(parts.hostname or "") or os.environ.get(PLAIN_VARIABLE, "") == "1":
        return KeyHeader(secret, url)
    words = f"anybody between here and {parts.hostname} could read it: use https, or {PLAIN_VARIABLE}=1"
    if key is not None:
        raise InvalidRequest(f"the API key is not sent over plain HTTP, where {words}")
    LOG.warning("%s is not sent to %s over plain HTTP, where %s", VARIABLE, parts.hostname, words)
    return None


def key_advice(problem: Mapping[str, object]) -> str:
    """What to say behind a service's problem where that is that it takes no request without a key."""
    return f": give Client a key, or set {VARIABLE}" if problem.get("code") == "key_required" else ""
