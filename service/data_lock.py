"""Locks that a process holds for its life: the server's on its data folder, the worker's on its machine."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType

from tirgemm.errors import AlreadyRunning, StoreError


class ProcessLock:
    """An exclusive ``flock`` on ``path``, which holds the owner's pid and ``note``; the kernel drops it with the process.

    ``what`` names the thing in AlreadyRunning, which is raised where another process still holds it after ``wait_s``.
    """

    def __init__(self, path: Path, what: str, note: str = "", wait_s: float = 0.0) -> None:
        self.path = path
        self._fd = _open(path)
        deadline = time.monotonic() + wait_s
        while not _try_lock(self._fd):
            if time.monotonic() >= deadline:
                owner = _owner(path)
                os.close(self._fd)
                raise AlreadyRunning(f"{what} is in use by process {owner}; stop that one first, or use another")
            time.sleep(0.05)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "note": note}).encode(), 0)

    def release(self) -> None:
        """Give the lock up. The file stays: deleting it would let two processes lock two files of one name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ProcessLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another user's process may lock the same file of a shared folder.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(
            f"lock file {path} cannot be opened: {error.strerror}; choose a folder that is writable"
        ) from error
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(path: Path) -> str:
    try:
        found = json.loads(path.read_text())
        return f"{found['pid']} ({found['note']})" if found["note"] else str(found["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
