"""A response held to the shape of a problem document."""

from __future__ import annotations

import re
from typing import Any

import httpx

from tirgemm.service.http.problems import MEDIA_TYPE

MEMBERS = {"type", "title", "status", "detail", "instance", "code"}


def check(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert response.status_code == status, body
    assert response.headers["content-type"] == MEDIA_TYPE
    assert body.keys() >= MEMBERS
    assert body["status"] == status
    assert body["type"] == f"urn:tirgemm:problem:{body['code']}"
    assert body["instance"] == response.request.url.path
    assert all(body[name] for name in MEMBERS)
    assert re.fullmatch(r"[a-z_]+", body["code"])
    assert code is None or body["code"] == code
    return body
