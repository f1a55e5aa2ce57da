"""``BlobStore``: files under the SHA-256 of their bytes, written whole or not at all."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from tirgemm.errors import DamagedBlob, StorageFull, StoreError, StoreUnavailable

_FULL = re.compile(r"No space left|StorageFull|QuotaExceeded|\(os error (?:28|122)\)")
_READ_ONLY = re.compile(r"Operation not permitted|Permission denied|Read-only file system|\(os error (?:1|13|30)\)")
# A blob that is put again counts as new, so that collection leaves it to the record that is about to name it.
_FRESH = timedelta(minutes=10)
_REMEMBERED = 4096


class Blob(NamedTuple):
    """A stored blob: its hash, its size, and when it was last put, in UTC."""

    sha256: str
    nbytes: int
    at: datetime


class BlobStore:
    """Content-addressed files in ``folder``, as ``ab/cd/abcd...``. Raises StoreError and StorageFull."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[str, tuple[int, int, int]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(str(folder))
        except (OSError, BaseError) as error:
            raise _translate(error, f"blob folder {folder} cannot be opened") from error

    def put(self, data: bytes) -> str:
        """Store ``data`` and return its hash. What is there already stays, unless it is damaged: then it is mended."""
        sha256 = hashlib.sha256(data).hexdigest()
        path, what = _path(sha256), f"blob {sha256} of {len(data)} bytes cannot be written"
        try:
            self._store.put(path, data, mode="create")
        except AlreadyExistsError:
            self._renew(path, data, what)
        except (OSError, BaseError) as error:
            raise _translate(error, what) from error
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes whose hash is ``sha256``; StoreError where they are absent or no longer have it."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise StoreError(f"{sha256!r:.80} is not a SHA-256 in lowercase hexadecimal")
        try:
            data = bytes(self._store.get(_path(sha256)).bytes())
        except FileNotFoundError as error:
            raise StoreError(f"blob {sha256} is not stored in {self.folder}") from error
        except (OSError, BaseError) as error:
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

    def delete(self, sha256: str) -> None:
        try:
            self._store.delete(_path(sha256))
        except FileNotFoundError:
            return
        except (OSError, BaseError) as error:
            raise _translate(error, f"blob {sha256} cannot be deleted") from error

    def list(self) -> Iterator[Blob]:
        """Every stored blob; files that are none of ours are passed over."""
        for batch in self._store.list():
            for meta in batch:
                name = str(meta["path"]).rsplit("/", 1)[-1]
                if meta["path"] == _path(name):
                    yield Blob(name, int(meta["size"]), meta["last_modified"])

    def sweep(self, older_than_s: float) -> int:
        """Delete what writers that were killed left unfinished (``HASH#1``); returns how many files."""
        swept = 0
        for left in self.folder.glob("??/??/*#*"):
            if left.stat().st_mtime < time.time() - older_than_s:
                left.unlink(missing_ok=True)
                swept += 1
        return swept

    def _renew(self, path: str, data: bytes, what: str) -> None:
        try:
            meta: Any = self._store.head(path)
            fresh = datetime.now(UTC) - meta["last_modified"] < _FRESH
            if not fresh or bytes(self._store.get(path).bytes()) != data:
                self._store.put(path, data, mode="overwrite")
        except (OSError, BaseError) as error:
            raise _translate(error, what) from error


def _path(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:4]}/{sha256}"


def _translate(error: Exception, what: str) -> StoreError:
    words = str(error).split("\n")[0].strip()
    if _FULL.search(str(error)):
        return StorageFull(f"{what}: no space is left on the disk of the blob folder; free some, then repeat")
    if _READ_ONLY.search(str(error)):
        return StoreUnavailable(f"{what}: {words}; repeat when this user can read and write the blob folder")
    return StoreError(f"{what}: {words}")
