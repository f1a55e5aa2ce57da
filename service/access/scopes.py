"""Scopes of the routes: which key it takes to ask with a method for a path."""

from __future__ import annotations

from tirgemm.tuning_db.access.api_keys import ApiKey, Scope

# Probes of whatever runs the service have no key, nor has who signs in or out.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/login", "/logout"})
# Style sheets and scripts, the same for everybody.
OPEN_PREFIX = "/assets/"
# Neither the API nor pages.
_PLAIN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})


def is_page(path: str) -> bool:
    """Whether a path is one of the pages': what a browser shows, and where it is signed in by a cookie."""
    return not path.startswith(("/v1/", OPEN_PREFIX)) and path not in _PLAIN_PATHS


def required_scope(method: str, path: str) -> Scope | None:
    """The least scope for a request; None where nobody needs a key. What is not listed here takes admin."""
    if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
        return None
    if method in ("GET", "HEAD", "OPTIONS"):
        return "read"
    if method == "POST" and path in ("/v1/kernels", "/v1/batches"):
        return "tune"
    if path.startswith(("/v1/jobs/", "/v1/batches/", "/jobs/", "/models/")):
        return "tune"
    return "admin"


def may_change(key_id: str | None, caller: ApiKey | None) -> bool:
    """Whether ``caller`` may change what was asked for with the key ``key_id``: whoever asked for it, an admin, and
    everybody where keys are off."""
    return caller is None or caller.allows("admin") or (caller.allows("tune") and key_id == caller.id)
