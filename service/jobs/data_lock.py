"""Locks that a process holds for its life: the server's on its data folder, the worker's on its machine."""

from __future__ import annotations

from pathlib import Path

from tirgemm.artifact.closing import Closing
from tirgemm.errors import AlreadyRunning, StoreError
from tirgemm.tuning.process.locks import FileLock, lock_holder, make_lock_file


class ProcessLock(Closing):
    """An exclusive lock on the file ``path``; the kernel drops it with the process, however that ends.

    ``what`` names the thing in AlreadyRunning, which is raised where another process still holds it after ``wait_s``.
    The file is its owner's alone, unless it is ``for_all`` users of the machine.
    """

    def __init__(self, path: Path, what: str, wait_s: float = 0.0, *, for_all: bool = False) -> None:
        self._lock = FileLock(path, private=not for_all)
        try:
            self._lock.acquire(timeout_s=wait_s)
        except AlreadyRunning as error:
            raise AlreadyRunning(
                f"{what} is in use by process {lock_holder(path)}; stop that one first, or use another"
            ) from error
        except OSError as error:
            raise _not_opened(path, error) from error

    def close(self) -> None:
        """Give the lock up. The file stays: deleting it would let two processes lock two files of one name."""
        self._lock.release()


def require_lock_file(path: Path) -> None:
    """Make the file of a lock and its folder where they are absent, whoever holds the lock. Raises StoreError where it
    cannot be opened."""
    try:
        make_lock_file(path)
    except OSError as error:
        raise _not_opened(path, error) from error


def _not_opened(path: Path, error: OSError) -> StoreError:
    reason = f"lock file {path} cannot be opened: {error.strerror}"
    return StoreError(f"{reason}; choose a folder that this user can write")
