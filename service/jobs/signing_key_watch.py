"""``SigningKeyWatch``: sees that a data folder has another signing key than the one that a worker signs with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tirgemm.artifact.sign import Signer
from tirgemm.errors import InvalidRequest

LOOK_SECONDS = 2.0


class SigningKeyWatch:
    """Calls ``on_change`` once, from a thread of its own, when the key in ``file`` is no longer ``public``; one that
    cannot be read now is no other one. ``seen`` says that it did. For a with block."""

    def __init__(self, file: Path, public: str, on_change: Callable[[], None]) -> None:
        self.seen = False
        self._file = file
        self._public = public
        self._on_change = on_change
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="signing key watch", daemon=True)

    def __enter__(self) -> SigningKeyWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                public = Signer.load(self._file).public
            except (InvalidRequest, OSError):
                continue
            if public != self._public:
                self.seen = True
                self._on_change()
                return
