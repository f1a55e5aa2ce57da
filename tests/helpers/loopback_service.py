"""A fake service behind a real socket of this machine, and what a running service of the user's leaves on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from tests.helpers.fake_service import FakeService
from tirgemm.artifact import Signer
from tirgemm.tuning.process.locks import FileLock


@contextmanager
def listening(fake: FakeService) -> Iterator[str]:
    """The address at which ``fake`` answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = httpx.Request(self.command, f"http://service.test{self.path}", content=body)
            answer = fake.handle_request(request)
            data = answer.read()
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers.get("content-type", "application/octet-stream"))
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 (http.server's name)

        def log_message(self, format: str, *args: object) -> None:
            """Not on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def served(folder: Path) -> Iterator[Signer]:
    """The signer of a data folder that this process has locked, as a running server has its own."""
    signer = Signer.load_or_create(folder / "signing.key")
    with FileLock(folder / "server.lock"):
        yield signer
