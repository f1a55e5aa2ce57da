"""Ownership of jobs and batches: who may change what was asked for with an API key."""

from __future__ import annotations

from tirgemm.service.http.problems import Problem
from tirgemm.service.http.state import Caller


def may_change(key_id: str | None, caller: Caller) -> bool:
    """Whether ``caller`` may change what was asked for with the key ``key_id``: whoever asked for it, an admin, and
    everybody where keys are off."""
    return caller is None or caller.allows("admin") or (caller.allows("tune") and key_id == caller.id)


def require_own(what: str, key_id: str | None, caller: Caller, verb: str) -> None:
    """Raise the 403 problem where it takes another key to ``verb`` that, named as in ``job 1234``."""
    if not may_change(key_id, caller):
        detail = f"{what} was asked for with another key; it takes a key of the scope admin to {verb} it"
        raise Problem(403, detail, "not_your_job")
