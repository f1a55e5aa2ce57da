"""Cookies of the pages: the API key that a browser is signed in with, and what its forms' tokens are made of."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Literal

from starlette.responses import Response

KEY_COOKIE = "tirgemm_key"
FORM_COOKIE = "tirgemm_form"
SAME_SITE: Literal["lax"] = "lax"


def cookie(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """The value of a cookie of ours among the headers of a request; empty where it is not there or twice. Those of
    other servers at the same host may look however they like."""
    lines = [value.decode("latin-1") for header, value in headers if header == b"cookie"]
    pairs = [part.partition("=") for line in lines for part in line.split(";")]
    values = [value.strip() for key, _, value in pairs if key.strip() == name]
    return values[0] if len(values) == 1 else ""


def form_token(form_cookie: str, secret: str) -> str:
    """The token that a browser's forms carry: nobody knows it who reads neither its pages nor its cookies. ``secret``
    is the API key that it is signed in with, empty where it is not."""
    return hmac.new(form_cookie.encode(), secret.encode(), hashlib.sha256).hexdigest()


def new_form_cookie() -> str:
    """A value for FORM_COOKIE."""
    return secrets.token_urlsafe(24)


def set_cookie(response: Response, name: str, value: str, *, secure: bool) -> None:
    """Give a browser a cookie until it is closed, which no script can read. It comes along where a link of another site
    is followed, but not with what such a site sends or loads."""
    response.set_cookie(name, value, path="/", secure=secure, httponly=True, samesite=SAME_SITE)
