"""Scopes of the routes: which key it takes to ask with a method for a path."""

from __future__ import annotations

from tirgemm.tuning_db.access.api_keys import Scope

# Probes of whatever runs the service have no key.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})


def required_scope(method: str, path: str) -> Scope | None:
    """The least scope for a request; None where nobody needs a key. What is not listed here takes admin."""
    if path in OPEN_PATHS:
        return None
    if method in ("GET", "HEAD", "OPTIONS"):
        return "read"
    if method == "POST" and path in ("/v1/kernels", "/v1/batches"):
        return "tune"
    if path.startswith(("/v1/jobs/", "/v1/batches/")):
        return "tune"
    return "admin"
