"""Times as the tables hold them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]


def iso(seconds: float | None = None) -> str:
    """Seconds since 1970 (by default now) as ``2026-07-31T23:59:59.000001Z``; these texts sort as the times do."""
    at = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
