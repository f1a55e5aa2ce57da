"""The file of a SQLite database: whether it can be written, and how it is opened for reading where it cannot."""

from __future__ import annotations

import os
from pathlib import Path

from tirgemm.errors import StoreUnavailable


def can_write(file: Path) -> bool:
    """Whether the file and its folder may be written, as far as they say."""
    return os.access(file, os.W_OK) and _can_add(file.parent)


def reading_uri(file: Path) -> str:
    """The URI of a file that cannot be written.

    SQLite shares the index of a write-ahead log in a file beside it, which it cannot make there. Without a log it needs
    none, and the file is opened as one that does not change: who writes it keeps a log. Raises StoreUnavailable for
    a log without its index.
    """
    log, index = (file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm"))
    uri = f"{file.absolute().as_uri()}?mode=ro"
    has_log = log.is_file() and (log.stat().st_size > 0 or index.is_file())
    if not has_log:
        return f"{uri}&immutable=1"
    if not index.is_file() and not _can_add(file.parent):
        raise StoreUnavailable(
            f"database {file} was not closed, and what {log.name} holds of it can only be read where this user can "
            f"write; copy its folder there"
        )
    return uri


def _can_add(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
