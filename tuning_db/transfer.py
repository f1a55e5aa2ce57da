"""Export, import and merge of records between databases.

Merging only adds. A sample set that is there already is passed over, and so is a kernel; a candidate that is known
keeps its record, unless it was not measured here and was measured there. Doing it twice changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.gemm import Gemm, regime_named
from tirgemm.status import ROLES
from tirgemm.tuning.records import Candidate, CandidateKey, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.json_values import plain_candidate, plain_json
from tirgemm.tuning_db import records_file, rows, schema
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import CandidateRow, DeviceRow, GemmRow, ImportRow, KernelRow, SampleSetRow
from tirgemm.tuning_db.store import (
    add_missing_samples,
    add_new_candidates,
    select_kernels,
    write_candidate,
    write_kernel,
)
from tirgemm.tuning_db.times import iso

_PAGE = 500
_DEFAULTS: dict[str, Any] = {
    "message": "",
    "rule": "",
    "error": None,
    "trace": None,
    "source_sha256": "",
    "binary_sha256": "",
    "kernel_sha256": "",
    "attempt": 1,
    "predicted_us": None,
    "sample_sets": [],
}


@dataclass
class Merged:
    """What a merge brought; ``known`` candidates were there already."""

    candidates: int = 0
    known: int = 0
    sample_sets: int = 0
    kernels: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class _KernelIn:
    """A kernel of a records file with its artifact, and when the exporter stored it."""

    kernel: KernelRecord
    artifact: bytes
    stored_at: str


def export_records(db: Database, path: Path, *, artifacts: bool = False) -> dict[str, Any]:
    """Write every candidate with its samples, and with ``artifacts`` the kernels too; returns the header."""
    with _outgoing(db, artifacts) as (header, records):
        records_file.write(Path(path), header, records)
    return header


def import_records(db: Database, path: Path) -> Merged:
    """Merge a records file, all of it or nothing. InvalidRequest names the line that is wrong."""
    path = Path(path)
    lines = records_file.read(path)
    header = next(lines, {})
    records_file.check_header(header, str(path))
    return _take_in(db, header, lines, records_file.sha256(path), str(path))


def read_candidates(path: Path) -> list[Candidate]:
    """The candidates of a records file, without a database. InvalidRequest names the line that is wrong."""
    lines = records_file.read(path)
    records_file.check_header(next(lines, {}), str(path))
    values = (_value_in(record, f"{path}, line {number}") for number, record in enumerate(lines, 2))
    return [value for value in values if isinstance(value, Candidate)]


def read_devices(path: Path) -> list[Device]:
    """The devices of a records file, which come first in it."""
    lines = itertools.islice(records_file.read(path), 1, None)
    records = itertools.takewhile(lambda record: record.get("kind") == "device", lines)
    return [Device.from_json(record["device"]) for record in records]


def read_database(db: Database) -> tuple[list[Device], list[Candidate]]:
    """The devices and candidates of one state of a database."""
    with _outgoing(db, artifacts=False) as (_, records):
        values = [_value_in(record, db.place) for record in records]
    return (
        [value for value in values if isinstance(value, Device)],
        [value for value in values if isinstance(value, Candidate)],
    )


def merge(db: Database, other: Database, *, artifacts: bool = True) -> Merged:
    """Merge another open database into ``db``, which may be of the other kind."""
    if db.url == other.url:
        raise InvalidRequest(f"database {db.place} cannot be merged into itself; name another one")
    with _outgoing(other, artifacts) as (header, records):
        return _take_in(db, header, records, rows.digest(header), other.place)


# -- out -----------------------------------------------------------------------------------------


@contextmanager
def _outgoing(db: Database, artifacts: bool) -> Iterator[tuple[dict[str, Any], Iterator[dict[str, Any]]]]:
    """The header and the records of one state of a database."""
    with db.read() as connection:
        counts = {"candidate": _count(connection, CandidateRow), "device": _count(connection, DeviceRow)}
        if artifacts:
            counts["kernel"] = _count(connection, KernelRow)
        header = {
            "format": records_file.FORMAT,
            "version": records_file.VERSION,
            "exported_at": iso(),
            "tirgemm": _own_version(),
            "schema": schema.HEAD,
            "counts": {kind: count for kind, count in counts.items() if count},
        }
        yield header, _records(db, connection, artifacts)


def _records(db: Database, connection: Connection, artifacts: bool) -> Iterator[dict[str, Any]]:
    for device in connection.execute(select(DeviceRow.description).order_by(DeviceRow.key)).scalars():
        yield {"kind": "device", "device": device}
    last = 0
    while True:
        page = select(CandidateRow.id).where(CandidateRow.id > last).order_by(CandidateRow.id).limit(_PAGE).subquery()
        wanted = select(*rows.CANDIDATE_COLUMNS).join(GemmRow).join(page, page.c.id == CandidateRow.id)
        found = connection.execute(wanted.order_by(CandidateRow.id)).all()
        if not found:
            break
        samples = select(*rows.SAMPLE_COLUMNS).join(page, page.c.id == SampleSetRow.candidate_id)
        taken = connection.execute(samples.order_by(SampleSetRow.id)).all()
        yield from map(_candidate_out, rows.candidates_of(found, taken))
        last = found[-1].id
    if artifacts:
        for row in connection.execute(select_kernels().order_by(KernelRow.seq)).all():
            yield _kernel_out(db, rows.kernel_of(row), row.stored_at)


def _candidate_out(candidate: Candidate) -> dict[str, Any]:
    values = {
        "kind": "candidate",
        "gemm": str(candidate.gemm),
        "device_key": candidate.device_key,
        "regime": candidate.regime,
        "config": candidate.config.to_json(),
        "status": str(candidate.status),
        "sample_sets": [samples.to_json() for samples in candidate.sample_sets],
        "error": "inf" if candidate.error == math.inf else candidate.error,
    }
    values |= {name: getattr(candidate, name) for name in _DEFAULTS if name not in values}
    return {name: value for name, value in values.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}


def _kernel_out(db: Database, kernel: KernelRecord, stored_at: str) -> dict[str, Any]:
    return {
        "kind": "kernel",
        "id": kernel.id,
        "gemm": str(kernel.gemm),
        "device": kernel.device.to_json(),
        "regime": kernel.regime,
        "role": kernel.role,
        "config": kernel.config.to_json(),
        "kernel_sha256": kernel.kernel_sha256,
        "artifact_sha256": kernel.artifact_sha256,
        "certificate": None if kernel.certificate is None else kernel.certificate.to_json(),
        "timings": kernel.timings,
        "trials": kernel.trials,
        "created_at": kernel.created_at,
        "stored_at": stored_at,
        "artifact": base64.b64encode(db.blobs.get(kernel.artifact_sha256)).decode(),
    }


# -- in ------------------------------------------------------------------------------------------


def _take_in(db: Database, header: dict[str, Any], records: Iterable[dict[str, Any]], origin: str, name: str) -> Merged:
    """Merge records in one transaction; blobs that were put before something went wrong are left for collection."""
    merged = Merged()
    seen: dict[str, int] = {}
    with db.write() as connection:
        source = {"sha256": origin, "header": header, "imported_at": iso()}
        connection.execute(db.insert(ImportRow).values(source).on_conflict_do_nothing())
        page: dict[CandidateKey, Candidate] = {}
        for number, record in enumerate(records, 2):
            value = _value_in(record, f"{name}, line {number}")
            if isinstance(value, Candidate):
                if value.key in page or len(page) == _PAGE:
                    _merge_candidates(db, connection, page, origin, merged)
                    page = {}
                page[value.key] = value
            elif isinstance(value, Device):
                rows.put_device(db, connection, value, replace=False)
            else:
                _merge_kernel(db, connection, value, origin, merged)
            kind = record["kind"]
            seen[kind] = seen.get(kind, 0) + 1
        _merge_candidates(db, connection, page, origin, merged)
        if seen != header["counts"]:
            raise InvalidRequest(f"{name} holds {seen}, its header says {header['counts']}; get the file again")
    return merged


def _merge_candidates(
    db: Database, connection: Connection, page: Mapping[CandidateKey, Candidate], origin: str, merged: Merged
) -> None:
    """Merge candidates of distinct keys: the new ones in two statements, the known ones one by one."""
    known = _known(connection, page)
    new = [candidate for key, candidate in page.items() if key not in known]
    merged.sample_sets += add_new_candidates(db, connection, new, origin)
    merged.candidates += len(new)
    merged.known += len(known)
    for key, (number, status) in known.items():
        candidate = page[key]
        if candidate.status is Status.MEASURED and status != str(Status.MEASURED):
            write_candidate(db, connection, candidate.with_(sample_sets=()), origin)
        merged.sample_sets += add_missing_samples(connection, number, candidate.sample_sets, origin)


def _known(connection: Connection, page: Mapping[CandidateKey, Candidate]) -> dict[CandidateKey, tuple[int, str]]:
    """Row number and status of those candidates that are stored already."""
    digests = {key.config_digest for key in page}
    columns = (
        CandidateRow.id,
        CandidateRow.status,
        CandidateRow.device_key,
        CandidateRow.regime,
        CandidateRow.config_digest,
        GemmRow.text,
    )
    wanted = select(*columns).join(GemmRow).where(CandidateRow.config_digest.in_(digests))
    stored = {
        (row.text, row.device_key, row.regime, row.config_digest): (row.id, row.status)
        for row in connection.execute(wanted.with_for_update(of=CandidateRow))
    }
    places = {key: (str(key.gemm), key.device_key, key.regime, key.config_digest) for key in page}
    return {key: stored[place] for key, place in places.items() if place in stored}


def _merge_kernel(db: Database, connection: Connection, found: _KernelIn, origin: str, merged: Merged) -> None:
    if connection.execute(select(KernelRow.seq).where(KernelRow.id == found.kernel.id)).first() is not None:
        return
    db.blobs.put(found.artifact)
    write_kernel(db, connection, found.kernel, origin, found.stored_at)
    merged.kernels += 1


def _value_in(record: dict[str, Any], place: str) -> Device | Candidate | _KernelIn:
    """The value of one record. InvalidRequest names its place."""
    try:
        kind = record["kind"]
        if kind == "device":
            return Device.from_json(record["device"])
        if kind == "candidate":
            return _candidate_in(record)
        if kind == "kernel":
            return _kernel_in(record)
        raise InvalidRequest(f"kind is {kind!r:.80}; it must be device, candidate or kernel")
    except KeyError as error:
        raise InvalidRequest(f"{place} is no record: field {error} is missing; nothing was imported") from error
    except (TirgemmError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidRequest(f"{place} is no record: {error}; nothing was imported") from error


def _candidate_in(record: dict[str, Any]) -> Candidate:
    values: dict[str, Any] = _DEFAULTS | {name: record[name] for name in _DEFAULTS if name in record}
    for name in ("message", "rule", "source_sha256", "binary_sha256", "kernel_sha256"):
        if not isinstance(values[name], str):
            raise InvalidRequest(f"{name} is {values[name]!r:.80}; it must be a text")
    numbers = {name: None if values[name] is None else float(values[name]) for name in ("error", "predicted_us")}
    sample_sets = tuple(SampleSet.from_json(samples) for samples in values["sample_sets"])
    values |= numbers | {"sample_sets": sample_sets, "attempt": _count_in(values["attempt"], "attempt")}
    return plain_candidate(
        Candidate(
            gemm=Gemm.parse(record["gemm"]),
            device_key=_word(record, "device_key"),
            regime=regime_named(record["regime"]),
            config=Config.from_json(record["config"]),
            status=Status(record["status"]),
            **values,
        )
    )


def _kernel_in(record: dict[str, Any]) -> _KernelIn:
    artifact = base64.b64decode(record["artifact"], validate=True)
    sha256, certificate = hashlib.sha256(artifact).hexdigest(), record["certificate"]
    if sha256 != record["artifact_sha256"]:
        raise InvalidRequest(f"the artifact has the hash {sha256}, not {record['artifact_sha256']!r:.80}")
    if record["role"] not in ROLES:
        raise InvalidRequest(f"role is {record['role']!r:.80}; it must be fallback, tuned or unverified")
    kernel = KernelRecord(
        gemm=Gemm.parse(record["gemm"]),
        device=Device.from_json(record["device"]),
        regime=regime_named(record["regime"]),
        role=record["role"],
        config=Config.from_json(record["config"]),
        kernel_sha256=_word(record, "kernel_sha256"),
        artifact_sha256=sha256,
        artifact_bytes=len(artifact),
        certificate=None if certificate is None else Certificate.from_json(plain_json(certificate)),
        timings=dict(plain_json(record["timings"])),
        trials=_count_in(record["trials"], "trials"),
        created_at=_word(record, "created_at"),
        id=_word(record, "id"),
    )
    return _KernelIn(kernel, artifact, _word(record, "stored_at"))


def _word(record: dict[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str) or not 1 <= len(value) <= 255:
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be a text of 1 to 255 characters")
    return value


def _count_in(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be an integer from 0 to {2**31 - 1}")
    return value


def _count(connection: Connection, table: type[CandidateRow | DeviceRow | KernelRow]) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _own_version() -> str:
    try:
        return importlib.metadata.version("tirgemm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
