"""Parameters that several routes share, and the refusal of those that a route does not take, or of another key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from tirgemm.service.access.scopes import may_change
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.requests import unique_members
from tirgemm.service.http.state import Caller
from tirgemm.service.validation_messages import IDS, TextForm

DeviceFilter = Annotated[
    str | None,
    Query(max_length=200, description="Only this device: its key, or a name such as cpu, cuda:0 or sm_90a."),
]
PageAfter = Annotated[
    str,
    Query(description="The `next` of the page before."),
    TextForm(r"^[0-9a-f]{0,32}$", f"the next of a page, {IDS}"),
]


def _if_none_match(
    request: Request,
    if_none_match: Annotated[
        str | None, Header(description="Tags of what the client has, or *. Of several headers each counts.")
    ] = None,
) -> list[str] | None:
    """All headers of that name. Declared as a list they would be an array in the OpenAPI document, where each is any
    text."""
    return None if if_none_match is None else request.headers.getlist("If-None-Match")


IfNoneMatch = Annotated[list[str] | None, Depends(_if_none_match)]
MAX_IDEMPOTENCY_KEY = 128
GemmFilter = Annotated[str | None, Query(max_length=512, description="Only this problem, in its text form.")]


async def _require_json(request: Request, content_type: Annotated[str, Header(include_in_schema=False)] = "") -> None:
    """Refuse what a page of another site can make a browser send without asking, forms and plain text, and an object
    with a member twice, of which a proxy may have looked at the other one."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, f"Content-Type is {media_type or 'missing'}; it must be application/json")
    # What is no JSON at all is told by whoever parses it for the route.
    with suppress(ValueError, RecursionError):
        json.loads(await request.body(), object_pairs_hook=unique_members)


async def _repeatable_id(
    request: Request,
    caller: Caller,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Made up by the client for this one request, to send it again where the answer was lost.",
            json_schema_extra={"pattern": f"^[!-~]{{1,{MAX_IDEMPOTENCY_KEY}}}$"},
        ),
    ] = None,
) -> str | None:
    if idempotency_key is None:
        return None
    if not re.fullmatch(f"[!-~]{{1,{MAX_IDEMPOTENCY_KEY}}}", idempotency_key):
        raise Problem(
            422,
            f"Idempotency-Key is {idempotency_key[:80]!r}, {len(idempotency_key)} characters; it must be 1 to "
            f"{MAX_IDEMPOTENCY_KEY} visible ASCII characters",
            "invalid_request",
        )
    return repeatable_id(idempotency_key, caller.id if caller is not None else None, await request.body())


def repeatable_id(idempotency_key: str, key_id: str | None, body: bytes) -> str:
    """The id of what a request makes which may be sent again: of the API key, of the key that the client made for the
    request, and of its body. So nothing else need be kept to know what was made before."""
    request = b"\0".join(((key_id or "").encode(), idempotency_key.encode(), body))
    return hashlib.sha256(request).hexdigest()[:16]


async def _only_known(request: Request) -> None:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = sorted(name for field in route.dependant.query_params for name in _names(field))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        names = ", ".join(repr(name[:80]) for name in unknown[:5])
        raise Problem(
            422,
            f"query parameter {names} is none of {route.path}; it takes {', '.join(known)}",
            "invalid_request",
            errors=[{"field": f"query.{name[:80]}", "message": "no such parameter"} for name in unknown[:20]],
        )


def _names(field: Any) -> Iterable[str]:
    """The query parameters that a field reads: those of its model where that is one."""
    model = field.field_info.annotation
    return model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else (field.alias,)


JSON_BODY = Depends(_require_json)
ONLY_KNOWN = Depends(_only_known)
# None without an Idempotency-Key.
RepeatableId = Annotated[str | None, Depends(_repeatable_id)]


def require_own(what: str, key_id: str | None, caller: Caller, verb: str) -> None:
    """Raise the 403 problem where it takes another key to ``verb`` that, named as in ``job 1234``."""
    if not may_change(key_id, caller):
        detail = f"{what} was asked for with another key; it takes a key of the scope admin to {verb} it"
        raise Problem(403, detail, "not_your_job")


def etag_matches(headers: list[str] | None, etag: str) -> bool:
    """Whether If-None-Match headers name a tag (RFC 9110, 13.1.2): lists of tags, compared weakly, or ``*``."""
    tags = [tag.strip().removeprefix("W/") for header in headers or () for tag in header.split(",")]
    return "*" in tags or etag in tags
