"""A service in a process of its own, for measurements and proofs: the end of it that serves."""

from __future__ import annotations

import json
import socket
import sys
import threading

import uvicorn


def serve_until_stdin_ends(config: uvicorn.Config, **told: object) -> None:
    """Serve on a free loopback port, which is printed with what is ``told`` as one JSON object."""
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)

    def end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    print(json.dumps({"port": listener.getsockname()[1], **told}), flush=True)
    server.run(sockets=[listener])
