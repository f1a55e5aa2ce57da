"""Bounded reads and atomic writes of files at paths that users name.

Read without waiting, whatever lies at that path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from io import BufferedReader
from pathlib import Path

from tirgemm.errors import InvalidRequest

_STREAMS = (Path("/dev/stdout"), Path("/dev/stderr"))


def open_regular(path: Path) -> BufferedReader:
    """The bytes of a regular file, or of one that ``path`` links to.

    Raises OSError, with EINVAL for what is none: opening or reading a FIFO or a device may take for ever.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        number, reason = (
            (errno.EISDIR, os.strerror(errno.EISDIR)) if stat.S_ISDIR(mode) else (errno.EINVAL, "not a regular file")
        )
        raise OSError(number, reason, str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file, one more than ``limit`` where it is longer. Raises what ``open_regular`` does."""
    with open_regular(path) as file:
        return file.read(limit + 1)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all, whoever else writes it now; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_named(path: Path, data: bytes) -> None:
    """Write what a user asked for: a file whole or not at all, whoever else writes it now, and where it is a link what
    that points to, with the mode that it had. A device, a FIFO and what output was redirected to are written to, not
    replaced. Raises InvalidRequest."""
    target = Path(os.path.realpath(path))
    draft = target.parent / f".part-{os.urandom(8).hex()}"
    try:
        if path.exists() and (not path.is_file() or _is_descriptor(path)):
            with path.open("ab") as stream:
                stream.write(data)
        else:
            draft.write_bytes(data)
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, draft)
            draft.replace(target)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _is_descriptor(path: Path) -> bool:
    """Whether it names an open file of this process, as /dev/stdout and /dev/fd/1 do."""
    return path.absolute() in _STREAMS or os.path.realpath(path.parent).startswith("/proc/")
