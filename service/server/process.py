"""The service on one data folder: lock, database, worker, one or several server processes, and an orderly end."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tirgemm._client.own_service import is_loopback
from tirgemm._interpreter import switch_often
from tirgemm.artifact.regular_file import write_whole
from tirgemm.errors import AlreadyRunning, InvalidRequest, StoreError
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs.condition_watch import ConditionWatch
from tirgemm.service.jobs.data_lock import ProcessLock
from tirgemm.service.jobs.supervisor import Supervisor, worker_command, worker_environment
from tirgemm.service.server.http_server import HttpServer, exit_at_signals
from tirgemm.service.server.repairs import ExitRequest, Repairs
from tirgemm.service.server.server_group import ServerGroup
from tirgemm.service.settings import Settings
from tirgemm.service.traces import traces_of
from tirgemm.service.views.service_figures import newest_candidate
from tirgemm.tuning_db.database import make_folder

logger = logging.getLogger("tirgemm.service")

Announce = Callable[[dict[str, Any]], None]
WORKER_SECONDS = 60.0
# `tirgemm db import` of a large file is one transaction.
LONGEST_WRITE_SECONDS = 600.0
# A disk that goes on losing pages must not have the service restarted all the time.
REPAIR_PAUSE_SECONDS = 3600.0
# After a repair that was not possible, the first time: twice as long each time.
RETRY_SECONDS = 60.0


def run_server(settings: Settings, announce: Announce) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. A SQLite database that was found to be damaged is repaired before it is
    served; where a process of the service meets damage later, all of them end first.

    ``announce`` gets ``{"url", "host", "port", "pid", "data", "started_at"}``, as ``server.json`` in the data folder
    does, once requests are answered and the worker, if there is to be one, is alive. Raises AlreadyRunning where
    another server has the data folder or the port, SchemaTooNew, StoreError, InvalidRequest, as ``require_keys`` does.
    """
    switch_often()
    asked_to_exit = ExitRequest()
    with ExitStack() as stack:
        stack.enter_context(traces_of(settings, "tirgemm-server"))
        make_folder(settings.data)
        stack.enter_context(ProcessLock(settings.server_lock, f"data folder {settings.data}"))
        settings.server_file.unlink(missing_ok=True)
        listener = stack.enter_context(_listen(settings.host, settings.port))
        repairs = Repairs(settings, listener, asked_to_exit)
        state = repairs.open()
        if state is not None:
            with ExitStack() as opening:
                opening.enter_context(closing(state))
                require_keys(state)
                opening.pop_all()
        announce = _once(announce)
        not_before, retry_s = time.monotonic(), RETRY_SECONDS
        while state is not None and _serve(state, listener, announce, repairs, asked_to_exit, not_before):
            state = repairs.open_again()
            retry_s = RETRY_SECONDS if repairs.repaired else min(2 * retry_s, REPAIR_PAUSE_SECONDS)
            not_before = time.monotonic() + (REPAIR_PAUSE_SECONDS if repairs.repaired else retry_s / 2)


def _serve(
    state: ServiceState,
    listener: socket.socket,
    announce: Announce,
    repairs: Repairs,
    asked_to_exit: ExitRequest,
    not_before: float,
) -> bool:
    """Serve until asked to exit, or until the database is found to be damaged, but for that not before then, and not
    while it cannot be repaired; whether to serve again. Everything that this process started and that has the database
    open is ended by then."""
    settings = state.settings
    with ExitStack() as stack:
        stack.enter_context(closing(state))
        supervisor = None
        if settings.worker:
            supervisor = Supervisor(
                worker_command(os.getpid()), worker_environment(settings), lambda pid: _is_alive(state, pid)
            )
        server: HttpServer | ServerGroup
        if settings.server_processes > 1:
            after = state.candidates_after
            server = ServerGroup(settings, newest_candidate(state.database) if after is None else after, supervisor)
        else:
            server = HttpServer(state)

        def ask_to_exit() -> None:
            asked_to_exit.make()
            server.ask_to_exit()

        exit_at_signals(ask_to_exit)
        if asked_to_exit.is_made():
            return False
        if supervisor is not None:
            supervisor.start()
            stack.callback(supervisor.stop)
        stack.callback(settings.server_file.unlink, missing_ok=True)
        info = _describe(settings, listener)
        announcer = threading.Thread(
            target=_announce_when_ready, args=(server, state, supervisor, info, announce), daemon=True
        )
        announcer.start()
        stack.callback(announcer.join)
        stack.callback(server.ask_to_exit)
        is_to_be_repaired = partial(_is_to_be_repaired, settings.damage_marker, not_before, repairs)
        watch = stack.enter_context(ConditionWatch("damage watch", is_to_be_repaired, server.ask_to_exit))
        # Uvicorn closes the socket that it is given.
        server.run(sockets=[stack.enter_context(listener.dup())])
        again = watch.seen and not asked_to_exit.is_made()
        if again:
            logger.error("the service stops, repairs its damaged database and starts again")
        else:
            listener.close()  # nobody waits for an answer while the worker ends
    return again


def _is_to_be_repaired(marker: Path | None, not_before: float, repairs: Repairs) -> bool:
    """Whether damage was met, what ends for its repair may end by now, and it can be repaired."""
    return marker is not None and time.monotonic() >= not_before and marker.is_file() and repairs.is_possible()


def _once(announce: Announce) -> Announce:
    """``announce`` what comes first, and nothing after it."""
    announced = threading.Event()

    def announce_first(info: dict[str, Any]) -> None:
        if not announced.is_set():
            announced.set()
            announce(info)

    return announce_first


def require_keys(state: ServiceState) -> None:
    """Raise InvalidRequest where others than this machine could ask and there is no API key; ``insecure`` lets them,
    with a warning."""
    settings = state.settings
    if is_loopback(settings.host) or state.access.table.entries():
        return
    if settings.insecure:
        logger.warning("without an API key everybody is let in who reaches host %r", settings.host)
        return
    raise InvalidRequest(
        f"host {settings.host!r} is not loopback and there is no API key: make one with `tirgemm keys create NAME`, or "
        f"let everybody in who reaches it with --insecure"
    )


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; bound here, so that a free port is known before anything is started."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequest(f"host {host!r} is no address to listen on: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            words = f"port {port} of {host} is in use by another process; choose another by --port, or --port 0"
            raise AlreadyRunning(words) from error
        raise InvalidRequest(f"port {port} of {host} cannot be listened on: {error.strerror}") from error
    return listener


def _describe(settings: Settings, listener: socket.socket) -> dict[str, Any]:
    port = listener.getsockname()[1]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    authority = f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"
    return {
        "url": f"http://{authority}",
        "host": settings.host,
        "port": port,
        "pid": os.getpid(),
        "data": str(settings.data),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _announce_when_ready(
    server: HttpServer | ServerGroup,
    state: ServiceState,
    supervisor: Supervisor | None,
    info: dict[str, Any],
    announce: Announce,
) -> None:
    deadline = time.monotonic() + WORKER_SECONDS
    while not server.should_exit:
        if server.started and (supervisor is None or _is_alive(state, supervisor.pid)):
            break
        if server.started and time.monotonic() > deadline:
            logger.warning(
                "no worker after %.0f s; requests for new kernels are refused until there is one", WORKER_SECONDS
            )
            break
        time.sleep(0.05)
    if server.should_exit:
        return
    write_whole(state.settings.server_file, json.dumps(info).encode(), 0o644)
    announce(info)


def _is_alive(state: ServiceState, pid: int | None) -> bool | None:
    """Whether the worker of that process is registered and was seen of late; None where the database does not say, or
    could not be told, for it cannot be written, its disk is full or others write. What has written for long may be the
    worker, which hangs."""

    def was_seen(seconds: float) -> bool:
        return any(f":{pid}:" in worker.name for worker in state.queue.live_workers(seconds))

    if not state.database.writable or state.database.is_full:
        return None
    try:
        if was_seen(state.settings.alive_seconds):
            return True
        if was_seen(state.settings.alive_seconds + LONGEST_WRITE_SECONDS):
            state.database.require_writable()
        return False
    except StoreError:
        return None
