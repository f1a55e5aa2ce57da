"""One of the server processes of a ``ServerGroup``, as that starts it: ``python -m``, with its Membership as JSON."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
from contextlib import closing

from tirgemm._interpreter import collect_seldom
from tirgemm.errors import TirgemmError
from tirgemm.service.group_memory import GroupMemory
from tirgemm.service.http.state import ServiceState
from tirgemm.service.log_lines import log_to_stderr
from tirgemm.service.server.http_server import HttpServer, serve
from tirgemm.service.server.server_group import Membership
from tirgemm.service.settings import Settings
from tirgemm.service.traces import traces_of
from tirgemm.tuning.process.child_rpc import die_with

logger = logging.getLogger("tirgemm.service")


def run_member(settings: Settings, member: Membership) -> None:
    """Answer requests until SIGTERM or SIGINT. Raises StoreError."""
    memory = GroupMemory(member.processes, member.number, member.memory)
    with (
        traces_of(settings, "tirgemm-server"),
        socket.socket(fileno=member.listener) as listener,
        # The process that started this one has completed the database, where that could be.
        closing(ServiceState.open(settings, memory, member.candidates_after, complete=False)) as state,
    ):
        serve(HttpServer(state), listener)


def _main() -> int:
    collect_seldom()
    member = Membership(**json.loads(sys.argv[1]))
    die_with(member.parent, signal.SIGTERM)
    settings = Settings.load()
    log_to_stderr(verbose=False, log_format=settings.log_format)
    try:
        run_member(settings, member)
    except TirgemmError as error:
        logger.error("server process %d: %s", member.number + 1, error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main())
