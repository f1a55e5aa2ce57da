"""Form fields of the pages, protected against CSRF: they are read only where the form's token is this browser's."""

from __future__ import annotations

import hmac
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse

from tirgemm.service.http.pages.site import OwnSite
from tirgemm.service.http.problems import Problem

MAX_FIELDS = 64
MEDIA_TYPE = "application/x-www-form-urlencoded"


async def _fields(request: Request, site: OwnSite) -> dict[str, str]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE:
        raise Problem(415, f"Content-Type is {media_type or 'missing'}; a form is sent as {MEDIA_TYPE}")
    try:
        text = (await request.body()).decode()
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MAX_FIELDS)
    except ValueError as error:
        detail = f"the form cannot be read, or has more than {MAX_FIELDS} fields"
        raise Problem(400, detail, "invalid_form") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Problem(400, "a field is twice in the form", "invalid_form")
    if not hmac.compare_digest(fields.pop("form_token", "").encode(), site.form_token.encode()):
        detail = "the form is not one of this browser's, or it was signed in or out since; open the page again"
        raise Problem(403, detail, "form_token")
    return fields


# The fields of a form without its token. Raises Problem. Every route that a form is sent to takes them.
FormFields = Annotated[dict[str, str], Depends(_fields)]


def redirected(request: Request, page: str, changed: str) -> RedirectResponse:
    """Lead the browser to ``page`` behind a form that ``changed`` what has this address in the API."""
    request.state.changed = changed
    return RedirectResponse(page, 303, {"Cache-Control": "no-store"})


def only_fields(fields: dict[str, str], *names: str) -> list[str]:
    """The fields of a form that has these and no others, in this order. Raises the 422 problem."""
    if fields.keys() != set(names):
        sent, wanted = ", ".join(sorted(fields))[:200] or "none", ", ".join(names) or "none"
        raise Problem(422, f"the form has the fields {sent}; it must have {wanted}", "invalid_request")
    return [fields[name] for name in names]
