"""``/login`` and ``/logout``: an API key in a cookie, so that a browser may look at the pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from tirgemm.service.access.cookies import KEY_COOKIE, SAME_SITE
from tirgemm.service.http.pages.forms import FormFields
from tirgemm.service.http.pages.site import OwnSite, SiteRequest
from tirgemm.service.http.state import State
from tirgemm.tuning_db.access.api_keys import secret_hash

router = APIRouter(tags=["pages"], include_in_schema=False)

MAX_KEY_CHARS = 512
MAX_TARGET_CHARS = 2000


@router.get("/login")
async def login_page(site: OwnSite, next: Annotated[str, Query(max_length=MAX_TARGET_CHARS)] = "/") -> Response:
    """The form that asks for a key."""
    return _form(site, next)


@router.post("/login")
async def sign_in(site: OwnSite, state: State, fields: FormFields) -> Response:
    """Keep the key in a cookie and go on to the page that was asked for; with a key that is not valid here, the form
    again."""
    secret, target = fields.get("key", "").strip(), fields.get("next", "/")
    keys = await state.access.keys()
    if keys:
        key = keys.get(secret_hash(secret)) if len(secret) <= MAX_KEY_CHARS else None
        fault = "is not known here" if key is None else key.fault(state.access.now())
        if fault:
            return _form(site, target, f"The API key {fault}; ask whoever runs this service for one.", 401)
    response = RedirectResponse(_own_path(target), 303, {"Cache-Control": "no-store"})
    if keys:
        site.set_cookie(response, KEY_COOKIE, secret)
    return response


@router.post("/logout")
async def sign_out(fields: FormFields) -> Response:
    """Forget the key."""
    del fields
    response = RedirectResponse("/login", 303, {"Cache-Control": "no-store"})
    response.delete_cookie(KEY_COOKIE, path="/", httponly=True, samesite=SAME_SITE)
    return response


def _form(site: SiteRequest, target: str, fault: str = "", status: int = 200) -> Response:
    return site.page("login.html", "Sign in", status, next=_own_path(target), fault=fault)


def _own_path(target: str) -> str:
    """``target`` where it is a path of this service, else the front page: nobody is sent elsewhere by a link to us."""
    is_path = target.startswith("/") and not target.startswith("//") and target.isprintable() and "\\" not in target
    return target if is_path else "/"
