"""``Deadline``: the time by which an HTTP exchange must have ended, however slowly its bytes come.

A timeout of httpx bounds one read. A server that sends a byte a second meets every one of them, in the headers too,
where nobody can look at the clock between two reads. At the deadline the exchange's sockets are shut down instead.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from typing import Any, Self

from tirgemm.artifact.closing import Closing


class Deadline(Closing):
    """Shuts the sockets of one exchange down ``seconds`` after the block was entered; never where they are infinite.

    ``extensions`` are for the request: by httpx's trace they tell of the connections that it opens, so that it must
    open its own. ``passed`` tells a connection that was lost from one that was shut down here.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.passed = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    @property
    def extensions(self) -> dict[str, Any]:
        return {"trace": self._trace}

    def set(self, seconds: float) -> None:
        """Shut down so many seconds from now, and no longer when it was said before."""
        self.close()
        self.seconds = seconds
        if not math.isinf(seconds):
            self._timer = threading.Timer(max(0.0, seconds), self.end)
            self._timer.daemon = True
            self._timer.start()

    def __enter__(self) -> Self:
        self.set(self.seconds)
        return self

    def close(self) -> None:
        """Shut nothing down any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _trace(self, name: str, info: dict[str, Any]) -> None:
        if name in ("connection.connect_tcp.complete", "connection.connect_unix_socket.complete"):
            connection = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets.append(connection)
            if self.passed:
                self.end()

    def end(self) -> None:
        """Shut the sockets down now, and those that are opened later."""
        with self._lock:
            self.passed = True
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    # The plain socket's own: under TLS this ends the reads below it.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
