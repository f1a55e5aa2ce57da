"""``BuildsReport``: the event that tells how builds stand, sent seldom."""

from __future__ import annotations

import time

from tirgemm.events import BuildsCounted, EventHandler

# It is told at most once in so long, but for the end of all builds.
BUILDS_SECONDS = 0.5


class BuildsReport:
    """Tells ``emit`` how the builds stand, at most once in ``BUILDS_SECONDS``, but always when none is left."""

    def __init__(self, emit: EventHandler) -> None:
        self._emit = emit
        self._told = 0, 0, 0
        self._told_at = float("-inf")

    def tell(self, queued: int, building: int, built: int) -> None:
        """Tell these counts, where they are others than those told last."""
        counts = queued, building, built
        recent = time.monotonic() < self._told_at + BUILDS_SECONDS
        if counts != self._told and not (recent and any(counts)):
            self._told, self._told_at = counts, time.monotonic()
            self._emit(BuildsCounted(queued=queued, building=building, built=built))
