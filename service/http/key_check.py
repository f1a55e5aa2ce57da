"""The check of API keys, as ASGI middleware: before a body is read, and for whatever route is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.errors import TirgemmError
from tirgemm.service.access.access_control import AccessControl
from tirgemm.service.access.cookies import KEY_COOKIE, cookie
from tirgemm.service.access.scopes import is_page, required_scope
from tirgemm.service.http.problems import Problem, error_response, respond
from tirgemm.service.log_lines import key_id
from tirgemm.tuning_db.access.api_keys import SECRET_PREFIX, ApiKey, secret_hash
from tirgemm.tuning_db.access.audit import AuditEntry

if TYPE_CHECKING:
    from tirgemm.service.http.state import ServiceState

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
REFUSALS = frozenset({401, 403, 429})
_KEY_PARAMETERS = frozenset({"key", "api_key", "apikey", "token", "access_token", "authorization"})
_CHALLENGE = 'Bearer realm="tirgemm"'


class KeyCheck:
    """Refuse requests without a valid key, once there is one, with 401, those beyond its rate with 429 and beyond its
    scope with 403; write what was changed or refused into the audit log."""

    def __init__(self, app: ASGIApp, state: ServiceState) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _CheckedRequest(scope, self.state.access)

        async def send_audited(message: Message) -> None:
            if message["type"] == "http.response.start":
                await request.audit(message["status"])
            await send(message)

        try:
            await request.check()
        except Problem as refused:
            answer = respond(scope["path"], refused.status, refused.code, refused.detail, refused.headers)
        except TirgemmError as error:
            answer = error_response(scope["path"], error)
        else:
            # In place: what makes pages of problems, outside of this, shows who is signed in.
            scope["state"] = request.values
            await self.app(scope, receive, send_audited)
            return
        await answer(scope, receive, send_audited)


class _CheckedRequest:
    """One request: the key it came with, and what becomes of it. ``values`` are what the routes see and say:
    ``caller``, the key; ``changed``, the path of what was changed."""

    def __init__(self, scope: Scope, access: AccessControl) -> None:
        self.scope = scope
        self.access = access
        self.key: ApiKey | None = None
        self.values: dict[str, Any] = {**scope.get("state", {}), "caller": None}

    async def check(self) -> None:
        """Raises Problem for a request that is refused, StoreError where the keys cannot be read."""
        _refuse_key_in_url(self.scope["query_string"])
        needed = required_scope(self.scope["method"], self.scope["path"])
        if needed is None:
            return
        keys = await self.access.keys()
        if not keys:
            return
        secret = _secret(self.scope)
        self.key = keys.get(secret_hash(secret))
        fault = "is not known here" if self.key is None else self.key.fault(self.access.now())
        if fault or self.key is None:
            raise _invalid_key(fault)
        seconds = self.access.spend(self.key)
        if seconds:
            rate = self.access.quotas(self.key).requests_per_second
            detail = f"requests_per_second: this key may send {rate:g} requests a second; ask again in {seconds} s"
            raise Problem(429, detail, "rate_limited", {"Retry-After": str(seconds)})
        if not self.key.allows(needed):
            detail = f"this takes a key of the scope {needed}; the scope of this one is {self.key.scope}"
            challenge = f'{_CHALLENGE}, error="insufficient_scope", scope="{needed}"'
            raise Problem(403, detail, "insufficient_scope", {"WWW-Authenticate": challenge})
        self.values["caller"] = self.key
        key_id.set(self.key.id)

    async def audit(self, status: int) -> None:
        """Write or count what the request comes to, where it is refused or changes something."""
        method, path, client = self.scope["method"], self.scope["path"], self.scope.get("client")
        changed = self.values.get("changed") or (path if method == "DELETE" else None)
        address = client[0] if client else ""
        key_id = self.key.id if self.key is not None else None
        # A form without its token may come from anybody: of those without a key no row each is written.
        if status in (401, 429) or (status in REFUSALS and self.key is None):
            self.access.count_refusal(AuditEntry(key_id, method, "*", status, address))
        elif status in REFUSALS or (method not in SAFE_METHODS and status < 400 and changed is not None):
            await self.access.record(AuditEntry(key_id, method, changed or path, status, address))


async def require_still_admitted(access: AccessControl, key: ApiKey | None) -> None:
    """Raise the 401 problem where who was let in with ``key``, None where keys were off, and has waited since, would
    be let in no more."""
    if await access.still_admits(key):
        return
    if key is None:
        raise _key_required("this service takes requests with an API key by now, made while this one waited")
    raise _invalid_key("was revoked or has expired while its request waited")


def _key_required(detail: str) -> Problem:
    return Problem(401, detail, "key_required", {"WWW-Authenticate": _CHALLENGE})


def _invalid_key(fault: str) -> Problem:
    headers = {"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'}
    return Problem(401, f"the API key {fault}; ask whoever runs this service for one", "invalid_key", headers)


def holds_key(query: bytes) -> bool:
    """Whether the query of an address has what is, or may be, an API key."""
    return bool(query) and any(
        name.lower() in _KEY_PARAMETERS or value.startswith(SECRET_PREFIX)
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=None)
    )


def _refuse_key_in_url(query: bytes) -> None:
    """Addresses are logged, cached and passed on: a key in one is not taken, valid or not."""
    if holds_key(query):
        detail = (
            "an address is kept by logs and histories, so a key does not belong in it; send it as `Authorization: "
            "Bearer KEY` or by the form at /login, and revoke this one"
        )
        raise Problem(400, detail, "key_in_url")


def _secret(scope: Scope) -> str:
    """The API key that a request came with. A browser's cookie counts for looking, and where the pages' forms are sent
    to, whose token is checked there. Raises the 401 problem."""
    headers = scope["headers"]
    is_bare = not any(name == b"authorization" for name, _ in headers)
    if is_bare and (scope["method"] in SAFE_METHODS or is_page(scope["path"])):
        secret = cookie(headers, KEY_COOKIE)
        if secret:
            return secret
    return _bearer(headers)


def _bearer(headers: list[tuple[bytes, bytes]]) -> str:
    """The secret of the one Authorization header. Raises the 401 problem."""
    given = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
    kind, _, secret = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
    if kind.lower() != "bearer" or not secret.strip():
        raise _key_required(
            "this service takes requests with an API key, sent as one header `Authorization: Bearer KEY`"
        )
    return secret.strip()
