"""The server that is measured: the service on a data folder, and beside it in the same process a bare FastAPI route.

usage: python -m benchmarks.service_speed.server FOLDER     prints one JSON object with its port, an API key and its
process id; ends with its stdin
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from tirgemm._interpreter import switch_often
from tirgemm.service.http.state import ServiceState
from tirgemm.service.server.http_server import uvicorn_config
from tirgemm.service.settings import Settings
from tirgemm.tuning_db.access.api_keys import Quotas
from verification.service.served import serve_until_stdin_ends

BARE = "/bare"


def main(folder: Path) -> None:
    """Serve until stdin ends."""
    switch_often()
    state = ServiceState.open(Settings.load(data=folder, worker=False))
    quotas = Quotas(requests_per_second=1e9)
    _, secret = state.access.table.create("measuring", "tune", quotas=quotas)
    config = uvicorn_config(state)
    config.app = beside(bare_app(), cast("ASGIApp", config.app))
    serve_until_stdin_ends(config, key=secret, pid=os.getpid())
    state.explainer.close()
    state.database.close()


def bare_app() -> FastAPI:
    """FastAPI with one asynchronous route that does nothing, and no middleware."""
    app = FastAPI(openapi_url=None)

    @app.get(BARE)
    async def bare() -> dict[str, str]:
        return {"status": "ok"}

    return app


def beside(bare: ASGIApp, service: ASGIApp) -> ASGIApp:
    """Both applications on one port."""

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        await (bare if scope.get("path") == BARE else service)(scope, receive, send)

    return both


if __name__ == "__main__":
    main(Path(sys.argv[1]))
