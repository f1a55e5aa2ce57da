"""The httpx client of one service: the address, the proxies on the way, and whom a certificate is checked against."""

from __future__ import annotations

import os
import re
import ssl
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tirgemm._client.own_service import is_loopback
from tirgemm._extras import needed_by
from tirgemm.artifact.known_servers import address, redacted
from tirgemm.errors import InvalidRequest

with needed_by("tirgemm.Client"):
    import httpx

PROXY_VARIABLES = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY"


def checked_url(url: str) -> str:
    """``url`` without a slash at its end, if it is the address of a service. Raises InvalidRequest."""
    try:
        parsed = httpx.URL(url)
        good = parsed.scheme in ("http", "https") and re.fullmatch(r"[\w.:-]+", parsed.host) is not None
        # As it is looked up: a name with an empty or a long part is none.
        parsed.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, TypeError, UnicodeError):
        good = False
    if not good:
        raise InvalidRequest(f"service address {redacted(url)!r:.200} is not a URL such as http://127.0.0.1:8000")
    address(url)
    return url.rstrip("/")


def http_client(url: str, **options: Any) -> httpx.Client:
    """The client for the service at ``url``, with the proxies that the environment names: none to loopback, where the
    key goes in plain text. Raises InvalidRequest for variables that cannot be used."""
    verify = _trusted_authorities()
    uses_proxies = not is_loopback(urlsplit(url).hostname or "")
    try:
        if uses_proxies:
            _check_proxy_names()
        return httpx.Client(base_url=url, verify=verify, trust_env=uses_proxies, **options)
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        raise InvalidRequest(f"the proxies that {PROXY_VARIABLES} name cannot be used: {error}") from error


def _check_proxy_names() -> None:
    """Raise UnicodeError where a proxy's host is no name: else that is met when it is looked up."""
    for scheme, proxy in getproxies().items():
        if scheme in ("http", "https", "all"):
            (urlsplit(proxy if "://" in proxy else f"//{proxy}").hostname or "").encode("idna")


@cache
def _trusted_authorities() -> ssl.SSLContext:
    """What servers' certificates are checked against, read once a process: it takes 20 ms."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        named = ", ".join(f"{name}={os.environ.get(name, '')}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        why = error.strerror or error
        raise InvalidRequest(f"the authorities' certificates ({named}) cannot be read: {why}") from error
