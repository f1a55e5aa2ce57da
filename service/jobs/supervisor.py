"""The supervisor: keeps a process beside this one, such as the worker beside the server, and lets neither outlive the
other."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tirgemm.service.settings import Settings
from tirgemm.tuning.process.child_rpc import child_environment

logger = logging.getLogger("tirgemm.service")

STOP_SECONDS = 15.0
# How often a process is looked after, and how many looks at one that hangs it takes to believe it: a machine that was
# suspended needs a moment.
LOOK_SECONDS, LOOKS_MISSED = 1.0, 3
FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS = 0.5, 30.0, 60.0


def worker_command(parent: int) -> list[str]:
    """The command line of a worker that ends with the process ``parent``."""
    return [sys.executable, "-P", "-m", "tirgemm.service.commands.worker", "--parent", str(parent)]


def worker_environment(settings: Settings) -> dict[str, str]:
    """This process's environment, by which a child runs the same code, with the settings on top: a password in the
    database's URL is in no command line."""
    passed = settings.model_dump(mode="json", exclude_none=True)
    return child_environment({f"TIRGEMM_{name.upper()}": str(value) for name, value in passed.items()})


class Supervisor:
    """Starts a process and starts it again, with growing pauses, whenever it ends before ``stop``.

    ``is_alive`` says whether the process of a pid gave a sign of life of late, None where that cannot be known now. One
    that gave some, and then none at several looks in a row, hangs: it is killed, and the next one started. ``what``
    names the process in the log; it inherits the open ``files``.
    """

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        is_alive: Callable[[int], bool | None] = lambda _: None,
        what: str = "the worker",
        files: Sequence[int] = (),
    ) -> None:
        self._command = command
        self._environment = environment
        self._is_alive = is_alive
        self._what = what
        self._files = files
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # The kernel ties the worker to the thread that started it, so this thread lives as long as the server.
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the process ended, politely first."""
        self._stop.set()

    def stop(self) -> None:
        """End the process, politely first, and wait for it."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            started = time.monotonic()
            # In a session of its own: a Ctrl-C of the terminal is for the server, which ends the process.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=self._files,
                start_new_session=True,
            )
            code = self._wait(self._process)
            if self._stop.is_set():
                return
            if time.monotonic() - started > STEADY_SECONDS:
                pause = FIRST_PAUSE
            logger.error("%s ended with %s; it is started again in %.1f s", self._what, _words(code), pause)
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        seen, missed, looked = False, 0, time.monotonic()
        while not self._stop.is_set():
            try:
                return process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                if time.monotonic() < looked + LOOK_SECONDS:
                    continue
            alive, looked = self._is_alive(process.pid), time.monotonic()
            seen = seen or alive is True
            # After a look that could not tell a silent process has twice as many.
            missed = -LOOKS_MISSED if alive is None else missed + 1 if seen and not alive else 0
            if missed == LOOKS_MISSED:
                logger.error("%s, process %d, hangs: it gives no sign of life; it is killed", self._what, process.pid)
                process.kill()
                return process.wait()
        process.terminate()
        try:
            return process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
