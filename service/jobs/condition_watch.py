"""``ConditionWatch``: ends what a process of the service does once something about its data folder is so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

LOOK_SECONDS = 2.0


class ConditionWatch:
    """Calls ``on_met`` once, from a thread of its own, when ``is_met`` says so at one of its looks. ``seen`` says that
    it did. For a with block; ``what`` names the thread."""

    def __init__(self, what: str, is_met: Callable[[], bool], on_met: Callable[[], None]) -> None:
        self.seen = False
        self._is_met = is_met
        self._on_met = on_met
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=what, daemon=True)

    def __enter__(self) -> ConditionWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            if self._is_met():
                self.seen = True
                self._on_met()
                return
