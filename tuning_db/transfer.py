"""Export, import and merge of records between databases.

Merging only adds. A sample set that is there already is passed over, and so is a kernel; a candidate that is known
keeps its record, unless it was not measured here and was measured there. A kernel that is pinned there is pinned here,
where no other one of its problem is. Doing it twice changes nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import IntegrityError

from tirgemm._version import __version__
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.records import Candidate, CandidateKey, Status
from tirgemm.tuning_db import records_file, rows, schema
from tirgemm.tuning_db.answers.kernel_version import raise_version
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import CandidateRow, DeviceRow, GemmRow, ImportRow, KernelRow, SampleSetRow
from tirgemm.tuning_db.record_values import KernelIn, candidate_out, device_out, kernel_out, value_in
from tirgemm.tuning_db.store import (
    add_missing_samples,
    add_new_candidates,
    write_candidate,
    write_kernel,
)
from tirgemm.tuning_db.times import iso

_PAGE = 500


@dataclass
class Merged:
    """What a merge brought; ``known`` candidates were there already. ``missing`` artifacts are lost or damaged, and
    their kernels were left out."""

    candidates: int = 0
    known: int = 0
    sample_sets: int = 0
    kernels: int = 0
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"missing": list(self.missing)}


def export_records(db: Database, path: Path, *, artifacts: bool = False) -> dict[str, Any]:
    """Write every candidate with its samples, and with ``artifacts`` the kernels too; returns the header, whose
    ``missing`` names the artifacts that are lost or damaged, and whose kernels are left out."""
    with _outgoing(db, artifacts) as (header, records):
        records_file.write(Path(path), header, records)
    return header


def import_records(db: Database, path: Path) -> Merged:
    """Merge a records file, all of it or nothing. InvalidRequest names the line that is wrong."""
    header, lines = _opened(path)
    return _take_in(db, header, lines, records_file.sha256(path), str(path))


def require_records(path: Path) -> None:
    """Raise InvalidRequest, as ``import_records`` does, where a file is no whole records file."""
    header, lines = _opened(path)
    deque(_values(header, lines, str(path)), maxlen=0)


def read_candidates(path: Path) -> list[Candidate]:
    """The candidates of a records file, without a database. InvalidRequest names the line that is wrong."""
    _, lines = _opened(path)
    values = (value_in(record, f"{path}, line {number}") for number, record in enumerate(lines, 2))
    return [value for value in values if isinstance(value, Candidate)]


def read_devices(path: Path) -> list[Device]:
    """The devices of a records file, which come first in it."""
    lines = itertools.islice(records_file.read(path), 1, None)
    records = itertools.takewhile(lambda record: record.get("kind") == "device", lines)
    return [Device.from_json(record["device"]) for record in records]


def read_database(db: Database) -> tuple[list[Device], list[Candidate]]:
    """The devices and candidates of one state of a database."""
    with _outgoing(db, artifacts=False) as (_, records):
        values = [value_in(record, db.place) for record in records]
    return (
        [value for value in values if isinstance(value, Device)],
        [value for value in values if isinstance(value, Candidate)],
    )


def merge(db: Database, other: Database, *, artifacts: bool = True) -> Merged:
    """Merge another open database into ``db``, which may be of the other kind."""
    if db.url == other.url:
        raise InvalidRequest(f"database {db.place} cannot be merged into itself; name another one")
    with _outgoing(other, artifacts) as (header, records):
        merged = _take_in(db, header, records, rows.digest(header), other.place)
    merged.missing = tuple(header["missing"])
    return merged


# -- out -----------------------------------------------------------------------------------------


@contextmanager
def _outgoing(db: Database, artifacts: bool) -> Iterator[tuple[dict[str, Any], Iterator[dict[str, Any]]]]:
    """The header and the records of one state of a database."""
    with db.read() as connection:
        counts = {"candidate": _count(connection, CandidateRow), "device": _count(connection, DeviceRow)}
        missing: list[str] = []
        if artifacts:
            of_artifact = select(KernelRow.artifact_sha256, func.count()).group_by(KernelRow.artifact_sha256)
            kernels = {sha256: int(count) for sha256, count in connection.execute(of_artifact)}
            missing = sorted(sha256 for sha256 in kernels if not db.blobs.is_whole(sha256))
            counts["kernel"] = sum(kernels.values()) - sum(kernels[sha256] for sha256 in missing)
        header = {
            "format": records_file.FORMAT,
            "version": records_file.VERSION,
            "exported_at": iso(),
            "tirgemm": __version__,
            "schema": schema.HEAD,
            "counts": {kind: count for kind, count in counts.items() if count},
            "missing": missing,
        }
        yield header, _records(db, connection, artifacts, frozenset(missing))


def _records(
    db: Database, connection: Connection, artifacts: bool, missing: frozenset[str]
) -> Iterator[dict[str, Any]]:
    for device in connection.execute(select(DeviceRow.description).order_by(DeviceRow.key)).scalars():
        yield device_out(device)
    last = 0
    while True:
        page = select(CandidateRow.id).where(CandidateRow.id > last).order_by(CandidateRow.id).limit(_PAGE).subquery()
        wanted = select(*rows.CANDIDATE_COLUMNS).join(GemmRow).join(page, page.c.id == CandidateRow.id)
        candidate_rows = connection.execute(wanted.order_by(CandidateRow.id)).all()
        if not candidate_rows:
            break
        samples = select(*rows.SAMPLE_COLUMNS).join(page, page.c.id == SampleSetRow.candidate_id)
        taken = connection.execute(samples.order_by(SampleSetRow.id)).all()
        yield from map(candidate_out, rows.candidates_of(candidate_rows, taken))
        last = candidate_rows[-1].id
    if artifacts:
        for row in connection.execute(rows.select_kernels().order_by(KernelRow.seq)).all():
            kernel = rows.kernel_of(row)
            if kernel.artifact_sha256 in missing:
                continue
            yield kernel_out(kernel, db.blobs.get(kernel.artifact_sha256), row.stored_at)


# -- in ------------------------------------------------------------------------------------------


def _take_in(db: Database, header: dict[str, Any], records: Iterable[dict[str, Any]], origin: str, name: str) -> Merged:
    """Merge records in one transaction; blobs that were put before something went wrong are left for collection."""
    merged = Merged()
    with db.write() as connection:
        source = {"sha256": origin, "header": header, "imported_at": iso()}
        connection.execute(db.insert(ImportRow).values(source).on_conflict_do_nothing())
        page: dict[CandidateKey, Candidate] = {}
        for value in _values(header, records, name):
            if isinstance(value, Candidate):
                if value.key in page or len(page) == _PAGE:
                    _merge_candidates(db, connection, page, origin, merged)
                    page = {}
                page[value.key] = value
            elif isinstance(value, Device):
                rows.put_device(db, connection, value, replace=False)
            else:
                _merge_kernel(db, connection, value, origin, merged)
        _merge_candidates(db, connection, page, origin, merged)
        if merged.kernels:
            raise_version(db, connection)
    return merged


def _opened(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The header of a records file and the records behind it, which are read as they are asked for."""
    lines = records_file.read(path)
    header = next(lines, {})
    records_file.check_header(header, str(path))
    return header, lines


def _values(
    header: dict[str, Any], records: Iterable[dict[str, Any]], name: str
) -> Iterator[Device | Candidate | KernelIn]:
    """The values of records, as many of each kind as the header says. InvalidRequest names the line that is wrong."""
    seen: dict[str, int] = {}
    for number, record in enumerate(records, 2):
        yield value_in(record, f"{name}, line {number}")
        seen[record["kind"]] = seen.get(record["kind"], 0) + 1
    if seen != header["counts"]:
        raise InvalidRequest(f"{name} holds {seen}, its header says {header['counts']}; get the file again")


def _merge_candidates(
    db: Database, connection: Connection, page: Mapping[CandidateKey, Candidate], origin: str, merged: Merged
) -> None:
    """Merge candidates of distinct keys: the new ones in two statements, the known ones one by one."""
    known = _known(connection, page)
    try:
        with connection.begin_nested():
            merged.sample_sets += add_new_candidates(db, connection, _others(page, known), origin)
    except IntegrityError:  # PostgreSQL, where another has recorded one of them at this moment
        known = _known(connection, page)
        merged.sample_sets += add_new_candidates(db, connection, _others(page, known), origin)
    merged.candidates += len(page) - len(known)
    merged.known += len(known)
    for key, (number, status) in known.items():
        candidate = page[key]
        if candidate.status is Status.MEASURED and status != str(Status.MEASURED):
            write_candidate(db, connection, candidate.with_(sample_sets=()), origin)
        merged.sample_sets += add_missing_samples(connection, number, candidate.sample_sets, origin)


def _others(page: Mapping[CandidateKey, Candidate], known: Container[CandidateKey]) -> list[Candidate]:
    return [candidate for key, candidate in page.items() if key not in known]


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


def _merge_kernel(db: Database, connection: Connection, incoming: KernelIn, origin: str, merged: Merged) -> None:
    if connection.execute(select(KernelRow.seq).where(KernelRow.id == incoming.kernel.id)).first() is not None:
        return
    db.blobs.put(incoming.artifact)
    write_kernel(db, connection, incoming.kernel, origin, incoming.stored_at)
    if incoming.pinned:
        _pin(db, connection, incoming.kernel.id)
    merged.kernels += 1


def _pin(db: Database, connection: Connection, kernel_id: str) -> None:
    """Pin a new kernel, unless another one of its problem, device class and regime is pinned here."""
    mine = connection.execute(select(*KernelRow.__table__.columns).where(KernelRow.id == kernel_id)).one()
    same = [getattr(KernelRow, name) == getattr(mine, name) for name in ("gemm_id", "device_key", "regime")]
    if connection.execute(select(KernelRow.seq).where(*same, KernelRow.pinned_at.is_not(None))).first() is None:
        at = iso(db.now(connection))
        connection.execute(update(KernelRow).where(KernelRow.id == kernel_id).values(pinned_at=at))


def _count(connection: Connection, table: type[CandidateRow | DeviceRow]) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
