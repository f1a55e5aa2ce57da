"""Locking of a SQLite file whose first page is damaged, and a new first page, with which its log is read."""

from __future__ import annotations

import fcntl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tirgemm.errors import AlreadyRunning

# SQLite's own choice.
PAGE_SIZE = 4096
# The bytes of a file that SQLite locks (its file ``os.h``): PENDING_BYTE, and behind it those of writers and readers.
_LOCKED_FROM, _LOCKED_BYTES = 0x40000000, 512
_PAUSE_S = 0.1


@contextmanager
def locked_bytes(file: Path, wait_s: float) -> Iterator[BinaryIO]:
    """A file that SQLite cannot open, locked as SQLite does. AlreadyRunning where another process still has it open
    after ``wait_s``."""
    until = time.monotonic() + wait_s
    with file.open("r+b") as content:
        while True:
            try:
                fcntl.lockf(content, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM)
                break
            except OSError as error:
                if time.monotonic() >= until:
                    words = f"database {file} is open in another process; stop what uses it first"
                    raise AlreadyRunning(words) from error
                time.sleep(_PAUSE_S)
        yield content


def write_first_page(copy: BinaryIO, size: int) -> None:
    """Give a file with a write-ahead log the first page of a database with no tables, and whole pages of that size."""
    length = copy.seek(0, 2)
    copy.truncate(length + -length % size)
    page = bytearray(size)
    page[:16] = b"SQLite format 3\0"
    # The size, of which 65536 is written as 1; the versions for writing and reading with a log, and three fixed shares.
    # Below the format of tables, and the text's UTF-8.
    struct.pack_into(">HBBBBBB", page, 16, size % 65535, 2, 2, 0, 64, 32, 32)
    page[47], page[59] = 4, 1
    # An empty leaf of a table.
    page[100], page[105:107] = 0x0D, (size % 65536).to_bytes(2, "big")
    copy.seek(0)
    copy.write(page)
