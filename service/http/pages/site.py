"""``SiteRequest``: what all pages have in common: navigation, security headers, form tokens, documents as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from tirgemm.service.access.cookies import (
    FORM_COOKIE,
    KEY_COOKIE,
    cookie,
    form_token,
    new_form_cookie,
    set_cookie,
)
from tirgemm.service.http.accept import wants_html
from tirgemm.service.pages import render
from tirgemm.tuning_db.access.api_keys import ApiKey

# Nothing from elsewhere, no script or style in a page, and no page of ours in one of somebody else's.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Accept, Cookie",
}
# Of the OpenAPI document: a page beside its JSON.
HTML: dict[int | str, dict[str, Any]] = {
    200: {"description": "The page, or its JSON.", "content": {"text/html": {"schema": {"type": "string"}}}}
}
NAVIGATION = (
    ("/kernels", "Kernels"),
    ("/jobs", "Jobs"),
    ("/models", "Models"),
    ("/spaces", "Spaces"),
    ("/compare", "Compare"),
    ("/fleet", "Fleet"),
)


@dataclass(frozen=True, slots=True)
class SiteValues:
    """What the templates read of a request: the address of the section that it belongs to, who is signed in, empty
    where keys are off, and the token of its forms."""

    section: str
    key_name: str
    form_token: str
    navigation: tuple[tuple[str, str], ...] = NAVIGATION


class SiteRequest:
    """One request of a page."""

    def __init__(self, request: Request) -> None:
        headers = request.scope["headers"]
        self.scheme = _scheme(request)
        self._request = request
        # Not of the request's URL: a refused Host may make one that cannot be parsed.
        self._path = request.scope["path"]
        self._form_cookie = cookie(headers, FORM_COOKIE)
        self._is_new = not self._form_cookie
        if self._is_new:
            self._form_cookie = new_form_cookie()
        caller: ApiKey | None = getattr(request.state, "caller", None)
        self._key_name = caller.name if caller is not None else ""
        self.form_token = form_token(self._form_cookie, cookie(headers, KEY_COOKIE))
        self.wants_html = wants_html(request.headers.get("accept", ""))

    @property
    def service_url(self) -> str:
        """The address of the service, as the browser knows it."""
        return str(self._request.base_url.replace(scheme=self.scheme)).rstrip("/")

    def answer(self, template: str, title: str, document: BaseModel) -> Response:
        """The page that ``template`` makes of ``document``, there as ``page``; where no HTML is asked for, the document
        as JSON."""
        if self.wants_html:
            return self.page(template, title, page=document)
        return Response(
            document.model_dump_json(by_alias=True),
            headers={"Cache-Control": "no-store", "Vary": PAGE_HEADERS["Vary"]},
            media_type="application/json",
        )

    def page(self, template: str, title: str, status: int = 200, **values: object) -> Response:
        """The page of ``values``, with the headers of all pages."""
        own = "/spaces" if _is_below(self._path, "/candidates") else self._path
        section = next((address for address, _ in NAVIGATION if _is_below(own, address)), "")
        common = SiteValues(section, self._key_name, self.form_token)
        response = HTMLResponse(render(template, title=title, site=common, **values), status, PAGE_HEADERS)
        if self._is_new:
            self.set_cookie(response, FORM_COOKIE, self._form_cookie)
        return response

    def set_cookie(self, response: Response, name: str, value: str) -> None:
        """Give the browser a cookie, over HTTPS alone where the request came so."""
        set_cookie(response, name, value, secure=self.scheme == "https")


def _scheme(request: Request) -> str:
    """``https`` where the browser speaks that, by the word of the proxy before the service, which has no TLS itself, or
    by the browser's own. Who lies is deceived alone: its cookies and lines to copy are all that hangs on it."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    is_https = forwarded == "https" or request.headers.get("origin", "").startswith("https://")
    return "https" if is_https else str(request.scope["scheme"])


def _is_below(path: str, address: str) -> bool:
    return path == address or (address != "/" and path.startswith(f"{address}/"))


async def _site(request: Request) -> SiteRequest:
    return SiteRequest(request)


OwnSite = Annotated[SiteRequest, Depends(_site)]
