"""A browser without a window: it asks for HTML, keeps cookies, and sends forms as the pages have them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx

from tests.service.support import AUTHORITIES
from tests.waiting import PATIENCE_S

HTML = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"')


class Browser:
    """One browser at the address of a service; ``http`` sends and keeps its cookies."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers=HTML, verify=AUTHORITIES, timeout=PATIENCE_S)

    def open(self, path: str) -> httpx.Response:
        return self.http.get(path, follow_redirects=True)

    def token(self, page: str) -> str:
        """The form token that a page holds."""
        match = _TOKEN.search(page)
        assert match is not None, "the page has no form"
        return unescape(match[1])

    def send(self, path: str, token: str, **fields: str) -> httpx.Response:
        """Send a form; redirects are not followed."""
        return self.http.post(path, data={"form_token": token, **fields})

    def sign_in(self, secret: str, target: str = "/") -> httpx.Response:
        return self.send("/login", self.token(self.open("/login").text), key=secret, next=target)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.http.close()
