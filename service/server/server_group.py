"""``ServerGroup``: several server processes that answer requests on one listening socket."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from queue import SimpleQueue

from tirgemm.service.group_memory import GroupMemory
from tirgemm.service.jobs.supervisor import Supervisor, worker_environment
from tirgemm.service.settings import Settings

_MODULE = "tirgemm.service.server.group_member"
# Where prometheus_client keeps the counters of a group's processes, each in files of its own.
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
# A process whose event loop has stood still for so long hangs.
SILENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Membership:
    """What a process of a group is told on its command line: by whom, which of how many it is, the open files of the
    socket and of the memory, and the candidate behind which they all count."""

    parent: int
    number: int
    processes: int
    listener: int
    memory: int
    candidates_after: int

    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", _MODULE, json.dumps(asdict(self))]


class SignsOfLife:
    """Whether the process of a number lives, as its supervisor asks: its event loop turned within SILENT_SECONDS."""

    def __init__(self, memory: GroupMemory, number: int) -> None:
        self._memory = memory
        self._number = number
        self._pid, self._seen, self._seen_at = 0, 0, float("-inf")

    def are_there(self, pid: int) -> bool:
        signs = self._memory.signs_of_life(self._number)
        if pid != self._pid:  # a new one, which first has to start
            self._pid, self._seen, self._seen_at = pid, signs, float("-inf")
        if signs != self._seen:
            self._seen, self._seen_at = signs, time.monotonic()
        return time.monotonic() - self._seen_at < SILENT_SECONDS


class ServerGroup:
    """Starts ``settings.server_processes`` processes that accept connections from one socket, and each again whenever
    it ends or hangs before the group is asked to end. With the group ``worker``, which is another supervisor's, is told
    to end."""

    def __init__(self, settings: Settings, candidates_after: int, worker: Supervisor | None = None) -> None:
        self.should_exit = False
        self._settings = settings
        self._candidates_after = candidates_after
        self._worker = worker
        self._asked = SimpleQueue[None]()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (``run`` closes it)
        self._file.truncate(GroupMemory.size(settings.server_processes))
        self._memory = GroupMemory(settings.server_processes, file=self._file.fileno())

    @property
    def started(self) -> bool:
        """Whether every process has answered requests."""
        return self._memory.all_started

    def ask_to_exit(self) -> None:
        """End ``run`` soon, or at its start; also from a signal's handler."""
        self.should_exit = True
        self._asked.put(None)

    def run(self, sockets: list[socket.socket]) -> None:
        """Serve until asked to exit; then all processes end at the same time."""
        (listener,) = sockets
        files = (listener.fileno(), self._file.fileno())
        with ExitStack() as stack:
            stack.callback(self._file.close)
            metrics = stack.enter_context(tempfile.TemporaryDirectory(prefix="tirgemm-metrics-"))
            environment = worker_environment(self._settings) | {_METRICS_FOLDER: metrics}
            members = []
            for number in range(self._settings.server_processes):
                told = Membership(os.getpid(), number, self._memory.processes, *files, self._candidates_after)
                what = f"server process {number + 1}"
                signs = SignsOfLife(self._memory, number)
                members.append(Supervisor(told.command(), environment, signs.are_there, what, files))
                members[-1].start()
                stack.callback(members[-1].stop)
            self._asked.get()
            for each in (*members, *([self._worker] if self._worker else [])):
                each.ask_to_stop()
