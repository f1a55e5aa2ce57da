"""Artifacts opened to be looked at: from a file or the database, signed by whomever; nothing of them is run."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tirgemm._extras import absent
from tirgemm.artifact import Package, Trust, read
from tirgemm.artifact.package import read_file, signing_key
from tirgemm.errors import ArtifactError, InvalidRequest, StoreError
from tirgemm.timings import Timings
from tirgemm.tuning_db.data_folder import database_file, open_store

if TYPE_CHECKING:
    from tirgemm.tuning.records import KernelRecord, SampleSet
    from tirgemm.tuning.records.store import Store

LOG = logging.getLogger("tirgemm.client")
_ID = re.compile(r"[0-9a-f]{6,64}")


@dataclass(frozen=True)
class OpenedArtifact:
    """An artifact whose signature fits what it holds.

    ``data`` is the whole file. ``trusted``: whether the key is one that is believed here. ``where`` it is from, in
    words. ``record``, and the raw ``samples`` of the very same kernel: what the database knows of it.
    """

    package: Package
    data: bytes
    trusted: bool
    where: str
    record: KernelRecord | None = None
    samples: tuple[SampleSet, ...] = ()

    @property
    def timings(self) -> Timings:
        return self.package.manifest.timings

    @property
    def signature(self) -> str:
        """Who signed it, and what that is worth here."""
        worth = "trusted here" if self.trusted else "NOT trusted here; `tirgemm call` and `load` refuse it"
        return f"{self.package.key}, {worth}"


def open_artifact(text: str, data: Path | None, db: str | None, trust: Trust) -> OpenedArtifact:
    """The artifact that ``text`` means: a file, else a kernel of the data folder by its id or how its hash begins.

    Raises InvalidRequest where there is neither, CorruptArtifact for a file that is not what its key signed.
    """
    path = Path(text)
    has_store = db is not None or database_file(data).exists()
    if path.is_file():
        opened = _opened(read_file(path), trust, text)
        if not has_store or (db is None and absent("tune")):
            return opened
        try:
            with open_store(data, db, to_read=True) as store:
                return _known_to(store, opened, None)
        except StoreError as error:
            LOG.warning("what a database knows of %s is left out: %s", text, error)
            return opened
    if not _ID.fullmatch(text):
        raise InvalidRequest(f"{text!r:.200} is neither a file nor the id of a kernel, 6 hexadecimal digits or more")
    if not has_store:
        raise InvalidRequest(
            f"{text!r:.200} is no file, and {database_file(data)}, whose kernels have ids, does not exist"
        )
    from tirgemm.service.views.kernel_refs import find_kernel

    with open_store(data, db, to_read=True) as store:
        return open_kernel(store, find_kernel(store, text), trust)


def open_kernel(store: Store, record: KernelRecord, trust: Trust) -> OpenedArtifact:
    """The artifact of a kernel of ``store``. Raises StoreError where it is not there, CorruptArtifact for one that is
    not what its key signed."""
    try:
        blob = store.get_blob(record.artifact_sha256)
    except StoreError as error:
        raise StoreError(f"kernel {record.id} is in the database, its artifact is not: {error}") from error
    return _known_to(store, _opened(blob, trust, f"kernel {record.id}"), record)


def _opened(data: bytes, trust: Trust, where: str) -> OpenedArtifact:
    try:
        key = signing_key(data)
        return OpenedArtifact(read(data, replace(trust, keys=frozenset({key}))), data, key in trust.keys, where)
    except ArtifactError as error:
        raise type(error)(f"{where}: {error}") from error


def _known_to(store: Store, opened: OpenedArtifact, record: KernelRecord | None) -> OpenedArtifact:
    """``opened`` with what the database knows of the very same kernel."""
    from tirgemm.service.views.kernel_samples import samples_of

    manifest = opened.package.manifest
    samples = samples_of(store, manifest.gemm, manifest.device.key, manifest.config, manifest.kernel_sha256)
    return replace(opened, record=record, samples=samples)
