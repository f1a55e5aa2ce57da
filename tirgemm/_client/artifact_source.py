"""Artifacts of one service: downloaded or cached, compared with what was asked for, kept once they are trusted."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tirgemm import artifact
from tirgemm._client.cache import Cache, check_hash, check_name
from tirgemm._client.http import ServiceConnection
from tirgemm._client.kernel_index import CachedKernel, KernelIndex
from tirgemm._client.lock_file import LockedKernel
from tirgemm._client.requested_kernel import RequestedKernel
from tirgemm._client.server_trust import ServerTrust
from tirgemm._client.service_documents import Document, artifact_sha256
from tirgemm.artifact import Manifest
from tirgemm.artifact.regular_file import read_regular
from tirgemm.errors import (
    ArtifactError,
    InvalidRequest,
    NotCached,
    RevokedArtifact,
    ServiceUnreachable,
    UntrustedArtifact,
)
from tirgemm.events import Downloaded, EventHandler

MAX_ARTIFACT_BYTES = 256 * 2**20


class ArtifactSource:
    """What a client gets artifacts from: ``cache`` and ``index`` on the disk, else the service of ``session``."""

    def __init__(self, session: ServiceConnection, server: ServerTrust, cache: Cache, index: KernelIndex) -> None:
        self._session = session
        self._server = server
        self._cache = cache
        self._index = index

    def unchecked(self, sha256: str, on_event: EventHandler | None = None) -> bytes:
        """The bytes of that hash, signed by whomever. CorruptArtifact if what arrives has another."""
        cached = self._cache.get(check_name(sha256))
        if cached is not None:
            return cached
        tell = on_event or (lambda _event: None)
        data = self._session.download(
            f"/v1/artifacts/{sha256}",
            MAX_ARTIFACT_BYTES,
            lambda done, total: tell(Downloaded(bytes=done, total=total)),
        )
        return check_hash(sha256, data)

    def package(self, document: Document, requested: RequestedKernel, on_event: EventHandler | None) -> bytes:
        """The artifact of a kernel document, trusted and as requested; only such a one is kept in the cache."""
        sha256 = artifact_sha256(document)
        data = self.unchecked(sha256, on_event)
        requested.check(self._manifest(data), document, self._session.url)
        self._cache.put(sha256, data)
        self._index.put(requested.gemm, document, self._session.url)
        return data

    def has(self, entry: CachedKernel) -> bool:
        """Whether the cache has the artifact of an entry, signed by whomever."""
        return self._cache.get(entry.artifact_sha256) is not None

    def serves(self, entry: CachedKernel) -> bool:
        """Whether the cache has the artifact of an entry; one that another service gave must be read and trusted
        here, too."""
        data = self._cache.get(entry.artifact_sha256)
        if data is None or entry.url == self._session.url:
            return data is not None
        why = self._refusal(data)
        return why is None or isinstance(why, RevokedArtifact)  # which is told when it is loaded

    def not_served(self, entry: CachedKernel, what: str) -> NotCached:
        """The error for who asks for ``what``, of which the cache has but an entry that it does not serve, and why."""
        why = self._refusal(self._cache.get(entry.artifact_sha256) or b"")
        return NotCached(
            f"the cache has a kernel for {what} from {entry.url} alone, and none that can be read and is trusted at "
            f"{self._session.url}; ask as a client of that address: --url {entry.url} ({why})"
        )

    def _refusal(self, data: bytes) -> ArtifactError | None:
        """Why an artifact cannot be used here, as where a newer version wrote it; None where it can."""
        try:
            artifact.read(data, self._server.trust)
        except ArtifactError as error:
            return error
        return None

    def locked(self, kernel: LockedKernel, folder: Path | None, *, verify: bool) -> bytes:
        """The artifact of a lock file's entry, from ``folder``, the cache or the service, and no other one."""
        sha256 = check_name(kernel.artifact_sha256)
        data = None if folder is None else artifact_in(folder, sha256)
        if data is None:
            data = self._cache.get(sha256)
        if data is None:
            try:
                data = self.unchecked(sha256)
            except ServiceUnreachable as error:
                there = f"neither in {folder} nor " if folder is not None else "not "
                raise NotCached(f"artifact {sha256}, which is locked, is {there}in the cache: {error}") from error
        kernel.check(self._manifest(data), verify=verify)
        self._cache.put(sha256, data)
        return data

    def _manifest(self, data: bytes) -> Manifest:
        self._server.learn_revocations(quick=True)
        try:
            return artifact.read(data, self._server.trust).manifest
        except RevokedArtifact:
            raise
        except UntrustedArtifact as error:
            # The key may have been replaced since this client compared it.
            try:
                self._server.check(again=True, quick=True)
            except ServiceUnreachable:
                raise error from None
            return artifact.read(data, self._server.trust).manifest


def artifact_in(folder: Path, sha256: str) -> bytes | None:
    """The artifact of that hash in a folder, whatever its file is called; None where there is none.

    A cache, and the blobs of a data folder, are such folders, too. Raises InvalidRequest for what is no folder.
    """
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is no folder of artifacts")
    named = (folder / f"{sha256}.tirgemm", folder / sha256[:2] / sha256[2:4] / sha256)
    for path in (*named, *sorted(folder.glob("*.tirgemm"))):
        try:
            data = read_regular(path, MAX_ARTIFACT_BYTES)
            if len(data) <= MAX_ARTIFACT_BYTES and hashlib.sha256(data).hexdigest() == sha256:
                return data
        except OSError:
            continue
    return None
