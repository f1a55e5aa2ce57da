"""``DamageWatch``: sees that a process of the service has met damage in the SQLite database of the data folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

LOOK_SECONDS = 2.0


class DamageWatch:
    """Calls ``on_damage`` once, from a thread of its own, when ``marker`` is there, but not before ``time.monotonic``
    is ``not_before``, nor while something can be done about it only later, as ``is_time`` says; never where ``marker``
    is None. ``seen`` says that it did. For a with block."""

    def __init__(
        self,
        marker: Path | None,
        on_damage: Callable[[], None],
        not_before: float = float("-inf"),
        is_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self.seen = False
        self._marker = marker
        self._on_damage = on_damage
        self._not_before = not_before
        self._is_time = is_time
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="damage watch", daemon=True)

    def __enter__(self) -> DamageWatch:
        if self._marker is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        if self._marker is not None:
            self._thread.join()

    def _watch(self) -> None:
        assert self._marker is not None
        while not self._stop.wait(LOOK_SECONDS):
            if time.monotonic() >= self._not_before and self._marker.is_file() and self._is_time():
                self.seen = True
                self._on_damage()
                return
