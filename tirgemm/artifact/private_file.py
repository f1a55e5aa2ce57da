"""Files of mode 600 for keys and trust, written atomically.

Read only if nobody else can have written them.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tirgemm.artifact.regular_file import open_regular

MAX_BYTES = 1 << 20
# To write a draft takes milliseconds.
ABANDONED_S = 60.0


def read(path: Path, what: str, forbidden: int, refuse: Callable[[str], Exception]) -> bytes | None:
    """The bytes of a file whose mode has none of ``forbidden`` and which is the user's or root's; None if absent.

    ``what`` names the file in what is raised, which ``refuse`` makes of its text.
    """
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_mode & forbidden:
                want = "600" if forbidden & 0o044 else "644"
                raise refuse(
                    f"{what} {path} has mode {stat.S_IMODE(status.st_mode):o}; others must be kept out: chmod {want} "
                    f"{path}"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise refuse(f"{what} {path} belongs to user {status.st_uid}; it must be yours or root's")
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refuse(f"{what} {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise refuse(f"{what} {path} has more than {MAX_BYTES} bytes")
    return data


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps out whoever else would change a file of this folder meanwhile, where its file system can; the folder is
    made."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def append(path: Path, line: str) -> None:
    """Add a line to a file that is made where absent, behind whatever is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        ends_mid_line = size > 0 and file.read(1) != b"\n"
        file.write((b"\n" if ends_mid_line else b"") + line.encode() + b"\n")


def create(path: Path, data: bytes) -> bool:
    """Write a new file, whole or not at all; False where another process was first."""
    return _write(path, data, os.link)  # unlike a rename, a link fails where there is a file


def replace(path: Path, data: bytes) -> None:
    """Write a file in the place of the one that is there, where that is a link in the place of what it points to."""
    _write(path.resolve(), data, os.replace)


def sweep(path: Path) -> None:
    """Delete what writers that were killed have left of ``path``, and of the files whose names go on from its name:
    drafts of more than ABANDONED_S seconds ago, which may hold a private key."""
    draft = re.compile(rf"\.{re.escape(path.name)}(\..+)?\.\d+\.[0-9a-f]{{8}}")
    for left in path.parent.glob(f".{path.name}.*"):
        # Another process may sweep, too, or have ended its draft; and one that is not ours to delete is no obstacle.
        with suppress(OSError):
            if draft.fullmatch(left.name) and left.stat().st_mtime < time.time() - ABANDONED_S:
                left.unlink()


def _write(path: Path, data: bytes, put: Callable[[Path, Path], None]) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True
