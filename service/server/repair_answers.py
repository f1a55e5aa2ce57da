"""HTTP server for the time of a repair of the database: 200 for ``/healthz``, so that no liveness probe kills the
process, 503 with ``Retry-After`` for all else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RETRY_SECONDS = 5


class _AliveAnswer(BaseHTTPRequestHandler):
    # Of one connection, so that nobody holds a thread for long.
    timeout = 5.0

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65_537)
        if self.parse_request():
            self._answer()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """The service logs no requests."""

    def _answer(self) -> None:
        alive = self.command in ("GET", "HEAD") and self.path.partition("?")[0] == "/healthz"
        words = f"the damaged database is being repaired; ask again in {RETRY_SECONDS} s"
        content = json.dumps({"status": "ok"} if alive else {"error": "store_unavailable", "detail": words}).encode()
        self.send_response(200 if alive else 503)
        if not alive:
            self.send_header("Retry-After", str(RETRY_SECONDS))
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nobody's fault."""


@contextmanager
def answering(listener: socket.socket | None) -> Iterator[None]:
    """Answer on a listening socket, where there is one, until the end of the with block; the socket stays open."""
    if listener is None:
        yield
        return
    server = _Server(("", 0), _AliveAnswer, bind_and_activate=False)
    server.socket.close()
    server.socket = listener.dup()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="answers of a repair", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
