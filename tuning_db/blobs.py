"""``BlobStore``: files under the SHA-256 of their bytes, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

from tirgemm.errors import DamagedBlob, StorageFull, StoreError, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EPERM, errno.EACCES, errno.EROFS)
# A blob that is put again counts as new, so that collection leaves it to the record that is about to name it.
_FRESH = timedelta(minutes=10)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REMEMBERED = 4096


class Blob(NamedTuple):
    """A stored blob: its hash, its size, and when it was last put, in UTC."""

    sha256: str
    nbytes: int
    at: datetime


class BlobStore:
    """Content-addressed files in ``folder``, as ``ab/cd/abcd...``. Raises StoreError and StorageFull.

    It keeps no thread and no open file: a process that is forked from one that used it can use it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[str, tuple[int, int, int]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _translate(error, f"blob folder {folder} cannot be opened") from error

    def put(self, data: bytes) -> str:
        """Store ``data`` and return its hash. What is there already stays, unless it is damaged: then it is mended."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.folder / _path(sha256)
        try:
            if not _is_fresh(path) or path.read_bytes() != data:
                _write(path, data)
        except OSError as error:
            raise _translate(error, f"blob {sha256} of {len(data)} bytes cannot be written") from error
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes whose hash is ``sha256``; StoreError where they are absent or no longer have it."""
        if not _SHA256.fullmatch(sha256):
            raise StoreError(f"{sha256!r:.80} is not a SHA-256 in lowercase hexadecimal")
        try:
            data = (self.folder / _path(sha256)).read_bytes()
        except FileNotFoundError as error:
            raise StoreError(f"blob {sha256} is not stored in {self.folder}") from error
        except OSError as error:
            raise _translate(error, f"blob {sha256} cannot be read") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise DamagedBlob(
                f"blob {sha256} in {self.folder} is damaged: its bytes have another hash; put it again to mend it"
            )
        return data

    def checked(self, sha256: str) -> Path:
        """The file of a blob that is known to be whole: all of it is read once, and again where the file has changed.

        StoreError where it is absent or damaged.
        """
        path = self.folder / _path(sha256)
        try:
            status = path.stat()
        except OSError as error:
            raise StoreError(f"blob {sha256} is not stored in {self.folder}") from error
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._whole.get(sha256) != identity:
            self.get(sha256)
            if len(self._whole) >= _REMEMBERED:
                self._whole.clear()
            self._whole[sha256] = identity
        return path

    def has(self, sha256: str) -> bool:
        """Whether a blob of that hash is there; its bytes are not read."""
        return (self.folder / _path(sha256)).is_file()

    def is_whole(self, sha256: str) -> bool:
        """Whether a blob can be read and has its bytes. Raises StoreUnavailable where this user may not read it."""
        try:
            self.get(sha256)
        except StoreUnavailable:
            raise
        except StoreError:
            return False
        return True

    def delete(self, sha256: str) -> None:
        try:
            (self.folder / _path(sha256)).unlink(missing_ok=True)
        except OSError as error:
            raise _translate(error, f"blob {sha256} cannot be deleted") from error

    def list(self) -> Iterator[Blob]:
        """Every stored blob; files that are none of ours are passed over."""
        try:
            for folder, _, names in os.walk(self.folder, onerror=_refuse, followlinks=True):
                for name in names:
                    path = Path(folder, name)
                    if _SHA256.fullmatch(name) and path == self.folder / _path(name):
                        with suppress(FileNotFoundError):  # deleted meanwhile
                            status = path.stat()
                            yield Blob(name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
        except OSError as error:
            raise _translate(error, f"blob folder {self.folder} cannot be listed") from error

    def sweep(self, older_than_s: float) -> int:
        """Delete what writers that were killed left unfinished (``HASH#...``); returns how many files."""
        swept = 0
        for left in self.folder.glob("??/??/*#*"):
            if left.stat().st_mtime < time.time() - older_than_s:
                left.unlink(missing_ok=True)
                swept += 1
        return swept


def _path(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:4]}/{sha256}"


def _is_fresh(path: Path) -> bool:
    """Whether a file is there and was written a short time ago."""
    try:
        written = path.stat().st_mtime
    except FileNotFoundError:
        return False
    return time.time() - written < _FRESH.total_seconds()


def _write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all, in place of the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}#{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _refuse(error: OSError) -> NoReturn:
    raise error


def _translate(error: OSError, what: str) -> StoreError:
    if error.errno in _FULL:
        return StorageFull(f"{what}: no space is left on the disk of the blob folder; free some, then repeat")
    if error.errno in _READ_ONLY:
        return StoreUnavailable(f"{what}: {error.strerror}; repeat when this user can read and write the blob folder")
    return StoreError(f"{what}: {error.strerror}")
