"""Downloaded artifacts on the user's disk, each under its SHA-256 and checked when it is read."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from pathlib import Path

from tirgemm.artifact.regular_file import write_whole
from tirgemm.errors import CorruptArtifact

LOG = logging.getLogger("tirgemm.client")


def check_name(sha256: str) -> str:
    """``sha256`` itself, if it is 64 lowercase hexadecimal digits: what may become a file name. Else
    CorruptArtifact."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise CorruptArtifact(f"{sha256!r:.80} is not a SHA-256; an artifact is named by 64 hexadecimal digits")
    return sha256


def check_hash(sha256: str, data: bytes) -> bytes:
    """``data`` itself, if it has this hash. Else CorruptArtifact."""
    arrived = hashlib.sha256(data).hexdigest()
    if arrived != sha256:
        raise CorruptArtifact(f"artifact {sha256} arrived with SHA-256 {arrived}; it was damaged or swapped on the way")
    return data


class Cache:
    """A folder of artifacts. Several processes may use it at once; a damaged file is as good as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, sha256: str) -> Path:
        return self.folder / f"{check_name(sha256)}.tirgemm"

    def get(self, sha256: str) -> bytes | None:
        """The bytes of that hash, or None where they are absent or damaged (a damaged file is removed)."""
        path = self.path(sha256)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
        LOG.warning("%s is damaged; it is downloaded again", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, sha256: str, data: bytes) -> None:
        """Keep ``data`` under its hash, unless it is there. CorruptArtifact if it has another; a folder that cannot be
        written only warns."""
        path = self.path(sha256)
        try:
            if path.exists():
                return
            check_hash(sha256, data)
            write_whole(path, data)
        except OSError as error:
            LOG.warning("%s is not kept in the cache: %s", path, error)
