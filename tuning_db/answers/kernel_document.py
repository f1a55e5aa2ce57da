"""The JSON document of a kernel as the API gives it: its members, and its text, stored when the kernel is.

Nothing of a stored kernel changes but its pin, so that its text stays what it is for as long as RENDERING does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from tirgemm.device import Device
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import KernelDocumentRow

# The number of the text's form: to be raised with any change of the text of any kernel. Texts of other numbers are
# rendered anew.
RENDERING = 1
# What decides whether a search did what a request asks for.
_DECIDING = ("ended", "effort", "seconds", "families")
_PINS = ('"pinned":false', '"pinned":true')


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


def with_pin(text: str, *, pinned: bool) -> str:
    """The text of a kernel that is not pinned, as it is once the kernel is ``pinned``.

    Its first member of that name is the kernel's own: those before it hold no member of that name, and a string that
    spells one is written with backslashes.
    """
    return text.replace(*_PINS, 1) if pinned else text


def is_whole(text: object, kernel_id: str) -> bool:
    """Whether what is stored is a text from the first member of this kernel's document to its last bracket: neither cut
    off, nor another kernel's, nor the bytes that SQLite may give back in the place of a text."""
    return isinstance(text, str) and text.startswith(f'{{"id":"{kernel_id}",') and text.endswith("}")


def put_documents(db: Database, connection: Connection, kernels: Sequence[tuple[int, KernelRecord]]) -> None:
    """Store the texts of kernels, given with their row numbers, in place of those of another rendering."""
    if not kernels:
        return
    statement = db.insert(KernelDocumentRow)
    changes = {name: statement.excluded[name] for name in ("rendering", "search", "json")}
    statement = statement.on_conflict_do_update(index_elements=["seq"], set_=changes)
    connection.execute(statement, [_values(seq, record) for seq, record in kernels])


def _values(seq: int, record: KernelRecord) -> dict[str, Any]:
    """A new row of kernel_documents."""
    search = record.timings.search
    return {
        "seq": seq,
        "rendering": RENDERING,
        "search": "" if search is None else dump_json({name: getattr(search, name) for name in _DECIDING}),
        "json": render(replace(record, pinned=False)),
    }
