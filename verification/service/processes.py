"""The service's commands as subprocesses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

# On a machine that other programs keep busy.
START_SECONDS, END_SECONDS = 180.0, 120.0
ROOT = Path(__file__).resolve().parents[2]


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"tirgemm.service.commands.{name}", *arguments]


@contextmanager
def server_process(
    module: str, folder: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """A server process on a data folder, run as ``python -m module folder`` with ``options``: what it tells as a line
    of JSON once it is ready. It ends when its stdin is closed."""
    arguments = [sys.executable, "-m", module, str(folder), *options]
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | dict(environment or {}),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        await_exit(process, END_SECONDS)


def await_exit(process: subprocess.Popen[Any], seconds: float) -> None:
    """Wait until the process has ended; it is killed after so long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def eventually(condition: Callable[[], object], seconds: float, pause: float = 0.05) -> bool:
    """Whether the condition, asked again and again, holds before so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class Serve:
    """``serve`` on a free port, ready; ended with everything that it started at the end of the block."""

    def __init__(self, data: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        (data / "server.json").unlink(missing_ok=True)
        arguments = ["--data", str(data), "--port", "0", "--lock-dir", str(data / "locks"), *options]
        self.log = data / "serve.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command("serve", *arguments), stdout=log, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
            )
        self.url = self._wait()

    def _wait(self) -> str:
        info = self.data / "server.json"
        eventually(lambda: info.exists() or self.process.poll() is not None, START_SECONDS, 0.02)
        if not info.exists():
            self.kill_all()
            raise AssertionError(f"the server did not start:\n{self.log.read_text()}")
        return str(json.loads(info.read_text())["url"])

    def worker_pid(self) -> int:
        """The worker's process id, 0 where none runs."""
        for pid in children(self.process.pid):
            if b"tirgemm.service.commands.worker" in command_line(pid):
                return pid
        return 0

    def kill_all(self) -> None:
        """SIGKILL to the server and to all that descends from it, in no order that anyone could rely on."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            kill(pid)
        self.process.wait(END_SECONDS)

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill_all()
                raise


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started and that have not ended."""
    actual: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            actual += map(int, task.read_text().split())
        except OSError:
            continue
    return [child for child in actual if alive(child)]


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    return [actual for child in children(pid) for actual in (child, *descendants(child))]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Whether the process runs: neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
