"""Host-wide locks: who may measure on a device, and on a CPU who may build. ``flock`` on files in a shared folder.

The kernel releases a lock when its holder dies, however it dies. Containers share a lock by sharing the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tirgemm.errors import AlreadyRunning, InvalidRequest

_FOLDER_MODE = 0o1777
_FILE_MODE, _PRIVATE_MODE = 0o666, 0o600
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05
# A shorter wait is not told: where builds and measurements take turns there are many.
_TOLD_AFTER_S = 0.25
_LOCKS = Path("/proc/locks")

# Gets what a wait is for, in plain words, when it has begun; "" when it is over.
OnWait = Callable[[str], None]


def default_lock_dir() -> Path:
    """``tirgemm-locks`` in the system's folder for temporary files, shared by all users of the machine."""
    return Path(tempfile.gettempdir()) / "tirgemm-locks"


class FileLock:
    """A lock on one file, exclusive or shared. Held by this object; another of the same process waits like any other.

    ``on_wait`` is told, from a thread, what an unlimited wait of more than a quarter of a second is for. A file that is
    ``private`` is for its owner alone: no other user can hold what it locks.
    """

    def __init__(
        self, path: Path, *, shared: bool = False, private: bool = False, on_wait: OnWait | None = None
    ) -> None:
        self.path = path
        self.shared = shared
        self._mode = _PRIVATE_MODE if private else _FILE_MODE
        self._on_wait = on_wait
        self._fd: int | None = None

    def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for the lock: without end where ``timeout_s`` is None, not at all where it is 0.

        Raises AlreadyRunning, which names the holder, after the time.
        """
        if self._fd is not None:
            raise RuntimeError(f"lock {self.path} is held already")
        fd = _open(self.path, self._mode)
        try:
            self._wait(fd, timeout_s)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        if not self.shared:
            with contextlib.suppress(OSError):  # who holds it is for a person; a full disk must not stop the holder
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _wait(self, fd: int, timeout_s: float | None) -> None:
        mode = fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX
        if timeout_s is None:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, mode | fcntl.LOCK_NB)
                return
            with self._told(fd):
                fcntl.flock(fd, mode)  # the kernel queues the waiters: fairer than asking again and again
            return
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                fcntl.flock(fd, mode | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            if time.monotonic() >= deadline:
                holder = lock_holder(self.path)
                raise AlreadyRunning(
                    f"lock {self.path} is held by process {holder}; it was not free within {timeout_s:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    @contextmanager
    def _told(self, fd: int) -> Iterator[None]:
        """Tells ``on_wait`` of the wait within the block, if it lasts, and of its end."""
        if self._on_wait is None:
            yield
            return
        told = threading.Event()

        def tell(on_wait: OnWait, reason: str) -> None:
            told.set()
            on_wait(reason)

        timer = threading.Timer(_TOLD_AFTER_S, tell, (self._on_wait, self._reason(fd)))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if told.is_set():
                self._on_wait("")

    def _reason(self, fd: int) -> str:
        """Who holds the lock. Only builders share it: where one more could, they hold it."""
        if not self.shared:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(fd, fcntl.LOCK_UN)
                return "kernels are being built on it"
        return f"another process measures on it, pid {lock_holder(self.path)}"


class DeviceLock:
    """The lock of one device: exclusive for measuring, shared for building on a CPU.

    Behind a gate, so that a measurer that waits is served before builders that come later: a steady stream of builders
    would otherwise keep it waiting for ever. ``on_wait`` as FileLock's.
    """

    def __init__(
        self, lock_key: str, lock_dir: Path | None = None, *, shared: bool = False, on_wait: OnWait | None = None
    ) -> None:
        folder = lock_dir or default_lock_dir()
        if not lock_key or not all(c.isalnum() or c in "-_" for c in lock_key):
            raise InvalidRequest(f"lock key {lock_key!r:.80} may hold letters, digits, '-' and '_' only")
        self._gate = FileLock(folder / f"{lock_key}.gate", shared=shared, on_wait=on_wait)
        self._lock = FileLock(folder / f"{lock_key}.lock", shared=shared, on_wait=on_wait)

    def make_files(self) -> None:
        """Make its files where they are absent. Raises InvalidRequest where they cannot be used: before a process is
        started that would fail on them."""
        for path in (self._gate.path, self._lock.path):
            try:
                make_lock_file(path)
            except OSError as error:
                raise InvalidRequest(
                    f"lock folder {path.parent} cannot be used: {path.name}: {error.strerror}; choose a folder that "
                    "this user can write, with lock_dir, --lock-dir or TIRGEMM_LOCK_DIR"
                ) from error

    def acquire(self, timeout_s: float | None = None) -> None:
        """As FileLock.acquire."""
        started = time.monotonic()
        self._gate.acquire(timeout_s)
        try:
            left = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started))
            self._lock.acquire(left)
        finally:
            self._gate.release()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def make_lock_file(path: Path) -> None:
    """Make a lock file with its folder where they are absent, and see that it can be opened. Raises OSError."""
    os.close(_open(path))


def _open(path: Path, mode: int = _FILE_MODE) -> int:
    """The lock file, created if need be, by default for every user of the machine; never through a symbolic link."""
    _make_folder(path.parent)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        # Not O_CREAT at once: in a sticky folder Linux refuses it for a file that another user made.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, flags)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise InvalidRequest(f"lock {path} is not a regular file; remove it")
            if mode == _PRIVATE_MODE:
                with contextlib.suppress(OSError):  # an older tirgemm made it for all
                    os.fchmod(fd, mode)
            return fd
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(fd, mode)
            return fd


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(_FOLDER_MODE)


def lock_holder(path: Path) -> str:
    """The process that holds a lock, as the kernel has it (/proc/locks); "unknown" for one of another container.

    Where the kernel does not say, the number in the file, which everybody may write, if such a process is there.
    """
    with contextlib.suppress(OSError):
        inode = str(path.stat().st_ino)
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            # NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE ...; of who waits, NUMBER: -> FLOCK ... (proc(5))
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return _described(fields[4])
    with contextlib.suppress(OSError, ValueError):
        written = path.read_bytes()[:32].decode("ascii").strip()
        if written.isdecimal() and (_LOCKS.parent / written).exists():
            return _described(written)
    return "unknown"


def _described(pid: str) -> str:
    """A process by its number; one of another user's with that user and the program, which say whom to ask."""
    try:
        owner = (_LOCKS.parent / pid).stat().st_uid
        program = (_LOCKS.parent / pid / "comm").read_text().strip()
    except OSError:
        return pid
    return pid if owner == os.geteuid() else f"{pid} ({program!r} of user {owner})"
