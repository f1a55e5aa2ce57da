"""Revoked artifacts among the blobs of a data folder, by its own list of revocations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tirgemm._user_folders import REVOCATIONS
from tirgemm.artifact.package import revocable_names
from tirgemm.artifact.revocations import revoked_by
from tirgemm.errors import ArtifactError, StoreError, UntrustedArtifact
from tirgemm.tuning_db.blobs import BlobStore
from tirgemm.tuning_db.database import Database


def revoked_names(db: Database) -> Mapping[str, str]:
    """What the list of the data folder revokes now, with the reasons. Raises StoreError for one that cannot be read."""
    try:
        return revoked_by(db.data_dir / REVOCATIONS)
    except UntrustedArtifact as error:
        raise StoreError(str(error)) from error


def revocation(db: Database, artifact_sha256: str) -> str:
    """What of a stored artifact the list of the data folder revokes, and why: its hash, a kernel of it, or the key that
    signed it; empty where it does not. Raises StoreError for a list that cannot be read."""
    if not (revoked := revoked_names(db)):
        return ""
    try:
        names = _names(db.blobs, artifact_sha256)
    except (ArtifactError, StoreError):  # which nobody can load
        names = frozenset({artifact_sha256})
    name = next((name for name in names if name in revoked), None)
    return "" if name is None else f"{name} was revoked: {revoked[name] or 'no reason is given'}"


@lru_cache(maxsize=4096)
def _names(blobs: BlobStore, artifact_sha256: str) -> frozenset[str]:
    return revocable_names(blobs.get(artifact_sha256))
