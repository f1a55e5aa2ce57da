"""The JSON document of a kernel as the API gives it: its members, and its text, stored when the kernel is.

Nothing of a stored kernel changes but its pin, so that its text stays what it is for as long as RENDERING does.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from sqlalchemy import ColumnElement, Connection, LargeBinary, and_, cast, select
from sqlalchemy.orm import InstrumentedAttribute

from tirgemm.device import Device
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import KernelDocumentRow, KernelRow
from tirgemm.tuning_db.rows import among

logger = logging.getLogger("tirgemm.tuning_db")
# The number of the text's form: to be raised with any change of the text of any kernel. Texts of other numbers are
# rendered anew.
RENDERING = 2
# What decides whether a search did what a request asks for.
_DECIDING = ("ended", "effort", "seconds", "families")
_PINS = (b'"pinned":false', b'"pinned":true')
# From 2,048 bytes on hashlib lets other threads run, and to be let in again takes longer than to hash a document.
_HASHED_AT_ONCE = 2047


@dataclass(frozen=True, slots=True)
class Rendered:
    """The JSON of a kernel document, and the entity tag of these bytes."""

    json: bytes
    etag: str

    @classmethod
    def of(cls, document: bytes) -> Self:
        """A document of these bytes."""
        return cls(document, f'"{_sha256(document).hexdigest()}"')


class DocumentRow(NamedTuple):
    """The columns of a stored document, as texts or the bytes of texts, which damage may make any bytes; null where
    none is stored."""

    search: str | bytes | None
    json: str | bytes | None
    sha256: str | bytes | None


def kernel_members(record: KernelRecord) -> dict[str, Any]:
    """The kernel document of the API."""
    own, artifact = f"/v1/kernels/{record.id}", f"/v1/artifacts/{record.artifact_sha256}"
    # What is explained are GPU kernels.
    explain = {"explain": f"{own}/explain"} if record.device.kind == "cuda" else {}
    certificate = record.certificate
    return {
        "id": record.id,
        "gemm": str(record.gemm),
        "problem": record.gemm.to_json(),
        "device": device_members(record.device),
        "regime": record.regime,
        "role": record.role,
        "portable": record.portable,
        "other_device": record.other_device,
        "pinned": record.pinned,
        "verified": certificate is not None and certificate.passed,
        "family": record.config.family,
        "config": dict(record.config.knobs),
        "config_hash": record.config.digest,
        "kernel_sha256": record.kernel_sha256,
        "members": [] if record.timings.members is None else [one.to_json() for one in record.timings.members],
        "timings": {name: value for name, value in record.timings.to_json().items() if name != "members"},
        "certificate": certificate.to_json() if certificate else None,
        "artifact": {"sha256": record.artifact_sha256, "bytes": record.artifact_bytes, "url": artifact},
        "trials": record.trials,
        "created_at": record.created_at,
        "links": {"self": own, "artifact": artifact} | explain,
    }


def device_members(device: Device) -> dict[str, str]:
    """A device as documents name it."""
    return {name: getattr(device, name) for name in ("key", "name", "kind", "model", "arch")}


def render(record: KernelRecord) -> str:
    """The text of a kernel's document."""
    return dump_json(kernel_members(record))


def pinned_document(document: bytes) -> bytes:
    """The document of a kernel that is not pinned, as it is once the kernel is pinned.

    Its first member of that name is the kernel's own: those before it hold no member of that name, and a string that
    spells one is written with backslashes.
    """
    return document.replace(*_PINS, 1)


def stored_document(row: DocumentRow, kernel_id: str, *, pinned: bool) -> Rendered | None:
    """The document of this kernel as it is stored; None where that is not what was written for it."""
    search, document, sha256 = map(_bytes, row)
    if not document.startswith(b'{"id":"%b",' % kernel_id.encode()):
        return None
    hashed = _sha256(document)
    etag = hashed.hexdigest()
    hashed.update(search)
    if hashed.hexdigest().encode() != sha256:
        return None
    return Rendered.of(pinned_document(document)) if pinned else Rendered(document, f'"{etag}"')


def _sha256(document: bytes) -> hashlib._Hash:
    """The hash of a document, to be gone on with."""
    hashed, view = hashlib.sha256(), memoryview(document)
    for first in range(0, len(document), _HASHED_AT_ONCE):
        hashed.update(view[first : first + _HASHED_AT_ONCE])
    return hashed


def _bytes(text: str | bytes | None) -> bytes:
    return text.encode() if isinstance(text, str) else text or b""


def log_damaged(kernel_id: str) -> None:
    """Say that a kernel's stored document is not what was written."""
    logger.warning("kernel %s: its stored document is damaged; it is rendered again", kernel_id)


def stored_documents(db: Database, ids: Sequence[str]) -> dict[tuple[str, bool], Rendered]:
    """By id, and whether it is pinned, the documents of these kernels that are stored whole in this version's form.
    Raises StoreError."""
    documents: dict[tuple[str, bool], Rendered] = {}
    kept = KernelDocumentRow
    whole = and_(kept.seq == KernelRow.seq, kept.rendering == RENDERING)
    statement = select(KernelRow.id, KernelRow.pinned_at, *_text_columns(db)).join(kept, whole)
    with db.read() as connection:
        for kernel_id, pinned_at, *texts in among(connection, statement, KernelRow.id, ids):
            pinned = pinned_at is not None
            document = stored_document(DocumentRow(*texts), kernel_id, pinned=pinned)
            if document is not None:
                documents[kernel_id, pinned] = document
            else:
                log_damaged(kernel_id)
    return documents


def _text_columns(db: Database) -> list[ColumnElement[Any] | InstrumentedAttribute[str]]:
    """The columns of a DocumentRow. In SQLite a damaged text need not be UTF-8, and to read one as a text would
    fail."""
    texts = KernelDocumentRow.search, KernelDocumentRow.json, KernelDocumentRow.sha256
    return [cast(text, LargeBinary) if db.is_sqlite else text for text in texts]


def repair_document(db: Database, record: KernelRecord) -> bool:
    """Store the text of a kernel anew where it is missing, damaged or of an older rendering; whether it was.

    It reads before it writes, and once more when it may write, so that of many readers of a damaged text one writes.
    Raises StoreError.
    """
    with db.read() as connection:
        if _unwritten(db, connection, record.id) is None:
            return False
    with db.write() as connection:
        # In PostgreSQL, where others write at the same time.
        connection.execute(select(KernelRow.seq).where(KernelRow.id == record.id).with_for_update())
        seq = _unwritten(db, connection, record.id)
        if seq is not None:
            put_documents(db, connection, [(seq, record)])
    return seq is not None


def _unwritten(db: Database, connection: Connection, kernel_id: str) -> int | None:
    """The row number of a kernel whose text is to be stored; None where it is whole, where a newer version has stored
    it in its own form, and where there is no such kernel."""
    kept = KernelDocumentRow
    statement = select(KernelRow.seq, kept.rendering, *_text_columns(db)).outerjoin(kept, kept.seq == KernelRow.seq)
    row = connection.execute(statement.where(KernelRow.id == kernel_id)).one_or_none()
    if row is None:
        return None
    seq, rendering, *texts = row
    if rendering is None or rendering < RENDERING:
        return int(seq)
    whole = rendering > RENDERING or stored_document(DocumentRow(*texts), kernel_id, pinned=False) is not None
    return None if whole else int(seq)


def put_documents(db: Database, connection: Connection, kernels: Sequence[tuple[int, KernelRecord]]) -> None:
    """Store the texts of kernels, given with their row numbers, in place of those of another rendering."""
    values = [{"seq": seq, "rendering": RENDERING} | _texts(record) for seq, record in kernels]
    if values:
        statement = db.upsert(KernelDocumentRow, ("seq",), ("rendering", "search", "json", "sha256"))
        connection.execute(statement, values)


def _texts(record: KernelRecord) -> dict[str, str]:
    """What a row of kernel_documents holds of a kernel."""
    summary = record.timings.search
    search = "" if summary is None else dump_json({name: getattr(summary, name) for name in _DECIDING})
    text = render(replace(record, pinned=False))
    return {"search": search, "json": text, "sha256": hashlib.sha256((text + search).encode()).hexdigest()}
