"""Uvicorn as a server process runs it: within our limits, and with an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from tirgemm._interpreter import switch_often
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs.process import ending_signals
from tirgemm.service.server.app import create_app
from tirgemm.service.server.limited_protocol import limited_protocol
from tirgemm.service.server.refusals import Refusals
from tirgemm.service.settings import MAX_HEADER_BYTES

# Connections that wait to be accepted.
BACKLOG = 2048
# At so many of Uvicorn's ticks, of a tenth of a second, one sign of life.
TICKS_OF_LIFE = 10
# What Uvicorn warns of at each such request: any number of lines, whoever asks. Of the first ``Refusals`` tells; the
# others are answered as requests without an upgrade.
CLIENT_FAULTS = ("Invalid HTTP request received.", "Unsupported upgrade request.", "No supported WebSocket library")


def uvicorn_config(state: ServiceState) -> uvicorn.Config:
    """How Uvicorn serves the application: within the limits on connections and headers, and without a line for each
    request that is none."""
    logging.getLogger("uvicorn.error").addFilter(_is_no_client_fault)
    limits = state.settings.max_connections, state.settings.connections_of_address
    return uvicorn.Config(
        create_app(state),
        host=state.settings.host,
        port=state.settings.port,
        http=limited_protocol(*limits, Refusals(state.metrics)),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,
        lifespan="off",
        # So many connections an event loop takes at each of its turns: of several processes the idle one is to take the
        # next.
        backlog=BACKLOG if state.memory.processes == 1 else 1,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
    )


class HttpServer(uvicorn.Server):
    """Uvicorn that ends the event streams first, which would otherwise hold the shutdown up."""

    def __init__(self, state: ServiceState) -> None:
        super().__init__(uvicorn_config(state))
        self._state = state
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask_to_exit(self) -> None:
        """End ``run`` soon, or at its start."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_OF_LIFE == 0:
            self._state.memory.give_sign_of_life()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._state.stopping.set)


def _is_no_client_fault(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(CLIENT_FAULTS)


def exit_at_signals(ask_to_exit: Callable[[], None]) -> None:
    """Call ``ask_to_exit`` at an ending signal: until Uvicorn takes SIGTERM and SIGINT, and when it raises them again
    after its end, so that what is open is closed either way."""
    for number in ending_signals():
        signal.signal(number, lambda _number, _frame: ask_to_exit())


def serve(server: HttpServer, listener: socket.socket) -> None:
    """Answer requests on a bound socket until an ending signal or ``ask_to_exit``."""
    switch_often()
    exit_at_signals(server.ask_to_exit)
    server.run(sockets=[listener])
