"""The files beside a database that is repaired: its bytes as they were, and the copy that the repair works on.

None of them is anybody else's to read, from its first moment, and each is made anew, never through a link.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from tirgemm.tuning_db.times import iso

_LOG = "-wal"
_AT_ONCE = 1 << 20


class RepairFiles:
    """Those of the repair of ``file``, for a with block of whoever has its lock. What an earlier one that was killed
    left behind is deleted first, but for the bytes of a database that it had begun to write: as long as those may be
    needed they have one name, ``unfinished``."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.work = beside(file, ".repair")
        self.pages = beside(file, ".repair.pages")
        self.unfinished = beside(file, ".damaged-unfinished")
        self._copy = beside(file, ".repair.kept")

    def __enter__(self) -> RepairFiles:
        self.drop()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.drop()

    def keep(self, content: BinaryIO) -> None:
        """Copy the bytes of the database, and of its write-ahead log, where it has one, and have them on the disk. What
        an earlier repair kept of the same bytes is that copy."""
        if self.unfinished.is_file() and self._is_unchanged(content):
            return
        self._copy_of(content, self._copy)
        log = beside(self.file, _LOG)
        if log.is_file() and log.stat().st_size:
            with log.open("rb") as written:
                self._copy_of(written, beside(self._copy, _LOG))

    def copy_log(self) -> None:
        """Give ``work`` the log of the kept bytes, where they have one."""
        kept = self._kept()
        if beside(kept, _LOG).is_file():
            with beside(kept, _LOG).open("rb") as log:
                self._copy_of(log, beside(self.work, _LOG))

    def begin_to_write(self) -> None:
        """From now on the kept bytes stay, whatever happens."""
        if self._copy.is_file():
            self.done()  # of an earlier one, of other bytes
            beside(self.unfinished, _LOG).unlink(missing_ok=True)  # there was no file to it
            _rename_with_log(self._copy, self.unfinished)

    def put_in_place(self) -> None:
        """Let ``work`` be the database: of a file that SQLite can neither open nor, therefore, write. Its log goes
        first: it is not the new file's, which it would falsify."""
        shutil.copymode(self.file, self.work)
        about = self.file.stat()
        with suppress(PermissionError):  # who is not root can only have been the owner
            os.chown(self.work, about.st_uid, about.st_gid)
        with self.work.open("rb") as whole:
            os.fsync(whole.fileno())
        for end in (_LOG, "-shm", "-journal"):
            beside(self.file, end).unlink(missing_ok=True)
        self.work.replace(self.file)
        _sync_folder(self.file)

    def put_log_back(self, content: BinaryIO) -> None:
        """Where an earlier repair was killed when it had deleted the log, but not put the new file in its place."""
        log, kept = beside(self.file, _LOG), beside(self.unfinished, _LOG)
        if kept.is_file() and not log.exists() and _are_equal(content, self.unfinished):
            with kept.open("rb") as bytes_kept:
                self._copy_of(bytes_kept, log)

    def done(self) -> Path | None:
        """The database is whole: what is kept of it gets the name that it stays under, None where nothing is."""
        if not self.unfinished.is_file():
            return None
        name = self._name_of(self.unfinished)
        _rename_with_log(self.unfinished, name)
        return name

    def name_for_good(self) -> Path:
        """The name that the kept bytes will have: of the moment when they were kept, so that it stays the same one
        whatever happens."""
        return self._name_of(self._kept())

    def drop_work(self) -> None:
        for end in ("", _LOG, "-shm", "-journal"):
            beside(self.work, end).unlink(missing_ok=True)

    def drop(self) -> None:
        """Delete what no repair needs any more."""
        self.drop_work()
        for file in (self.pages, beside(self.pages, "-journal"), self._copy, beside(self._copy, _LOG)):
            file.unlink(missing_ok=True)

    def _kept(self) -> Path:
        return self._copy if self._copy.is_file() else self.unfinished

    def _name_of(self, kept: Path) -> Path:
        name = f".damaged-{iso(kept.stat().st_mtime).replace(':', '')}"
        named, number = beside(self.file, name), 1
        while named.exists():
            number += 1
            named = beside(self.file, f"{name}-{number}")
        return named

    def _is_unchanged(self, content: BinaryIO) -> bool:
        """Whether what is kept is the database as it is: at most a transaction that did not end lies behind its log."""
        log, kept = beside(self.file, _LOG), beside(self.unfinished, _LOG)
        if not _are_equal(content, self.unfinished):
            return False
        if not kept.is_file():
            return not log.is_file() or log.stat().st_size == 0
        if not log.is_file() or log.stat().st_size < kept.stat().st_size:
            return False
        with log.open("rb") as written:
            return _begins_with(written, kept)

    @staticmethod
    def _copy_of(content: BinaryIO, target: Path) -> None:
        content.seek(0)
        with created(target) as copy:
            shutil.copyfileobj(content, copy, _AT_ONCE)
            copy.flush()
            os.fsync(copy.fileno())


@contextmanager
def repair_due(marker: Path) -> Iterator[None]:
    """Have whoever has the database open and looks with ``is_repair_due`` close it, until the end of the with block or
    of the process."""
    with marker.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def is_repair_due(marker: Path) -> bool:
    """Whether somebody repairs the database with that marker now, or waits to."""
    try:
        with marker.open("rb") as tried:
            fcntl.flock(tried, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def repair_obstacle(file: Path) -> str:
    """Why a database cannot be repaired now, as far as its folder says: it is to hold two more files of its size, and
    the log of the change; else empty."""
    file = file.resolve()
    try:
        size, free = file.stat().st_size, shutil.disk_usage(file.parent).free
    except OSError as error:
        return f"{file} cannot be looked at: {error.strerror}"
    if not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK | os.X_OK)):
        return f"{file} or its folder cannot be written"
    if free < 3 * size:
        return f"{file.parent} has {free} bytes left, and a repair takes {3 * size}; free some"
    return ""


@contextmanager
def created(file: Path) -> Iterator[BinaryIO]:
    """A new file that its owner alone may read."""
    number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "w+b") as content:
        yield content


def beside(file: Path, end: str) -> Path:
    return file.with_name(f"{file.name}{end}")


def _are_equal(content: BinaryIO, other: Path) -> bool:
    length = content.seek(0, os.SEEK_END)
    return length == other.stat().st_size and _begins_with(content, other)


def _begins_with(content: BinaryIO, other: Path) -> bool:
    content.seek(0)
    with other.open("rb") as begin:
        while part := begin.read(_AT_ONCE):
            if content.read(len(part)) != part:
                return False
    return True


def _rename_with_log(file: Path, name: Path) -> None:
    # The log first, so that a file that has its name has its log, too.
    if beside(file, _LOG).is_file():
        beside(file, _LOG).rename(beside(name, _LOG))
    file.rename(name)
    _sync_folder(name)


def _sync_folder(file: Path) -> None:
    number = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
