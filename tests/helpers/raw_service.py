"""A server on a free port that answers with bytes as they are: for what no HTTP library would send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.waiting import PATIENCE_S

# The bytes to send for a request, given its head; what sends them stops when the client is gone.
Script = Callable[[bytes], Iterable[bytes]]


@contextmanager
def answering(script: Script) -> Iterator[tuple[str, list[bytes]]]:
    """The address of the server, and the heads of the requests that came."""
    heads: list[bytes] = []
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = _head(connection)
            heads.append(head)
            for piece in script(head):
                if stop.is_set():
                    return
                connection.sendall(piece)

    def accept() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE_S)
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (acceptor, *threads):
            thread.join(PATIENCE_S)


def _head(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer with its length."""
    return head_of(f"Content-Length: {len(body)}", *headers, status=status) + body


def head_of(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")
