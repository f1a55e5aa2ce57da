"""Preference ``wait`` of a request (RFC 7240): how long its client waits for an answer."""

from __future__ import annotations

import re


def wait_preference(prefer: str | None, most: float) -> tuple[float | None, dict[str, str]]:
    """The N of ``wait=N`` in a Prefer header, at most ``most`` seconds, and the header that says so; None where it is
    not there or means nothing."""
    for preference in (prefer or "").split(","):
        match = re.fullmatch(r"\s*wait\s*=\s*\"?([0-9]+)\"?\s*(;.*)?", preference, re.IGNORECASE)
        if match:
            wait = min(float(match[1]), most)
            return wait, {"Preference-Applied": f"wait={wait:g}"}
    return None, {}
