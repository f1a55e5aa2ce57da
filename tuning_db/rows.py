"""Conversion between table rows and values, and writes that several tables share."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import InstrumentedAttribute

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import DamagedRow
from tirgemm.gemm import Gemm
from tirgemm.timings import Timings
from tirgemm.tuning.records import Candidate, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import (
    ArtifactRow,
    CandidateRow,
    CertificateRow,
    DeviceRow,
    GemmRow,
    KernelFigureRow,
    KernelRow,
    SampleSetRow,
)
from tirgemm.tuning_db.record_values import DOCUMENT_MEMBERS, PLAIN_MEMBERS, USUAL_MEMBERS
from tirgemm.tuning_db.times import iso

# Well below the fewest variables that a statement of any SQLite may have.
IDS_AT_ONCE = 500
K = TypeVar("K")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("tirgemm.tuning_db")


def parts(values: Sequence[T], size: int = IDS_AT_ONCE) -> Iterator[Sequence[T]]:
    """``values`` in runs of ``size``, each for one statement."""
    for first in range(0, len(values), size):
        yield values[first : first + size]


def among(
    connection: Connection, statement: Select[*Ts], column: InstrumentedAttribute[Any], keys: Sequence[K]
) -> Iterator[Row[*Ts]]:
    """Those rows of a statement in which the ``column`` is one of the keys, however many these are."""
    for part in parts(keys):
        yield from connection.execute(statement.where(column.in_(part)))


@lru_cache(maxsize=4096)
def parsed_gemm(text: str) -> Gemm:
    """The problem of a stored text; a page of rows names few, and parsing one takes longer than reading its row."""
    return Gemm.parse(text)


def digest(value: Any) -> str:
    """SHA-256 over the canonical JSON of ``value``."""
    return hashlib.sha256(dump_json(value, canonical=True).encode()).hexdigest()


def gemm_id(db: Database, connection: Connection, gemm: Gemm) -> int:
    """The row number of a problem, which is added where it is new."""
    return gemm_ids(db, connection, [gemm])[gemm]


def gemm_ids(db: Database, connection: Connection, gemms: Collection[Gemm]) -> dict[Gemm, int]:
    """The row numbers of problems; those that are new are added, in statements that do not grow in number with them.

    They are added in the order of their texts, so that on PostgreSQL two transactions do not wait for each other.
    """
    texts = {gemm: str(gemm) for gemm in sorted(gemms, key=str)}
    numbers = _numbers(connection, texts.values())
    columns = ("m_min", "m_max", "n", "k", "batch", "dtype", "layout")
    new = [
        {"text": text} | {name: getattr(gemm, name) for name in columns}
        for gemm, text in texts.items()
        if text not in numbers
    ]
    if new:
        connection.execute(db.insert(GemmRow).on_conflict_do_nothing(), new)
        numbers |= _numbers(connection, [values["text"] for values in new])
    return {gemm: numbers[text] for gemm, text in texts.items()}


_NUMBERS = select(GemmRow.text, GemmRow.id).where(GemmRow.text.in_(bindparam("texts", expanding=True)))


def _numbers(connection: Connection, texts: Iterable[str]) -> dict[str, int]:
    return {row.text: row.id for part in parts(list(texts)) for row in connection.execute(_NUMBERS, {"texts": part})}


def put_device(db: Database, connection: Connection, device: Device, *, replace: bool = True) -> None:
    """Describe a device class; without ``replace`` only where it has no description yet."""
    values = {"key": device.key, "description": device.to_json(), "updated_at": iso()}
    if replace:
        connection.execute(db.upsert(DeviceRow, ("key",), ("description", "updated_at")), values)
    else:
        connection.execute(db.insert(DeviceRow).on_conflict_do_nothing(), values)


def put_certificate(db: Database, connection: Connection, certificate: Certificate | None) -> str | None:
    """Store a certificate where it is new; returns its digest."""
    if certificate is None:
        return None
    values = certificate.to_json()
    key = digest(values)
    connection.execute(db.insert(CertificateRow).values(values | {"digest": key}).on_conflict_do_nothing())
    return key


# Of a candidate, under one name in its value, its row and its record.
CANDIDATE_MEMBERS = tuple(name for name in USUAL_MEMBERS if name != "sample_sets")


def candidate_values(candidate: Candidate) -> dict[str, Any]:
    """The columns of a candidate that recording it again replaces."""
    return {name: getattr(candidate, name) for name in CANDIDATE_MEMBERS} | {
        "family": candidate.config.family,
        "config": candidate.config.to_json(),
        "status": str(candidate.status),
        "updated_at": iso(),
    }


def sample_values(candidate_id: int, samples: SampleSet, origin: str = "") -> dict[str, Any]:
    """A new row of sample_sets."""
    values = samples.to_json()
    return values | {
        "candidate_id": candidate_id,
        "digest": digest(values),
        "median_us": samples.median_us,
        "origin": origin,
        "created_at": iso(),
    }


_SAMPLES = ("samples_us", "reason", "baselines", "conditions")
SAMPLE_COLUMNS = (SampleSetRow.candidate_id, *(getattr(SampleSetRow, name) for name in _SAMPLES))
CANDIDATE_COLUMNS = (*CandidateRow.__table__.columns, GemmRow.text)


# What making a value of a row raises that this tirgemm has not written.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
# What SQLite's driver says of a text of which a bit was flipped.
_NO_UTF8 = "Could not decode to UTF-8"
Tell = Callable[[str], None]


@lru_cache(maxsize=4096)
def log_once(message: str) -> None:
    """Log what is wrong with a row, once in this process."""
    logger.error(message)


def fetch(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> Sequence[Row[Any]]:
    """The rows of a statement. Raises DamagedRow where a column of one holds no JSON, or in SQLite no UTF-8."""
    try:
        return connection.execute(statement, parameters).all()
    except (json.JSONDecodeError, RecursionError) as error:
        raise DamagedRow(f"a column holds no JSON that can be read ({error}); put a backup back") from error
    except OperationalError as error:
        if _NO_UTF8 not in str(error.orig):
            raise
        raise DamagedRow(f"a column holds no text that can be read ({error.orig}); put a backup back") from error


def sound(read: Callable[[Sequence[K]], list[T]], keys: Sequence[K], what: str, tell: Tell = log_once) -> list[T]:
    """What ``read`` makes of the rows with these keys, without those that are damaged: ``tell`` is told of each of
    them, named as ``what`` with its key. They are looked for by halves."""
    if not keys:
        return []
    try:
        return read(keys)
    except DamagedRow as error:
        if len(keys) == 1:
            tell(f"{what} {keys[0]} is left out: {error}")
            return []
    middle = len(keys) // 2
    return [*sound(read, keys[:middle], what, tell), *sound(read, keys[middle:], what, tell)]


class CandidateQuery(NamedTuple):
    """Statements that read candidates, by the ``numbers`` of their rows: these ``rows``, and their ``samples``. To make
    them takes longer than to run them."""

    numbers: Select[int]
    rows: Select[Any]
    samples: Select[Any]
    newest_first: bool

    @classmethod
    def where(cls, conditions: Sequence[ColumnElement[bool]], newest: int | None = None) -> CandidateQuery:
        """Of those candidates that meet the ``conditions``, the oldest first, or of the ``newest`` of them, the newest
        first."""
        order = CandidateRow.id if newest is None else CandidateRow.id.desc()
        numbers = select(CandidateRow.id).join(GemmRow).where(*conditions).order_by(order).limit(newest)
        kept = numbers.subquery()
        wanted = select(*CANDIDATE_COLUMNS).join(GemmRow).join(kept, kept.c.id == CandidateRow.id).order_by(order)
        samples = select(*SAMPLE_COLUMNS).join(kept, kept.c.id == SampleSetRow.candidate_id).order_by(SampleSetRow.id)
        return cls(numbers, wanted, samples, newest is not None)


def read_candidates(
    connection: Connection,
    query: CandidateQuery,
    parameters: Mapping[str, Any] | None = None,
    tell: Tell = log_once,
) -> list[Candidate]:
    """The candidates of a query with these parameters; those whose rows or samples are damaged are left out, and
    ``tell`` is told of them."""

    def read(wanted: CandidateQuery, parameters: Mapping[str, Any] | None = None) -> list[Candidate]:
        rows = fetch(connection, wanted.rows, parameters)
        return candidates_of(rows, fetch(connection, wanted.samples, parameters)) if rows else []

    try:
        return read(query, parameters)
    except DamagedRow:
        return [
            candidate
            for part in parts(connection.execute(query.numbers, parameters).scalars().all())
            for candidate in sound(
                lambda ids: read(
                    CandidateQuery.where([CandidateRow.id.in_(ids)], len(ids) if query.newest_first else None)
                ),
                part,
                "candidate",
                tell,
            )
        ]


def candidates_of(rows: Sequence[Row[Any]], samples: Iterable[Row[Any]]) -> list[Candidate]:
    """Candidates from rows of CANDIDATE_COLUMNS and their sample sets from rows of SAMPLE_COLUMNS, in order. Raises
    DamagedRow for a row that makes no sense."""
    sets: dict[int, list[Row[Any]]] = {}
    for taken in samples:
        sets.setdefault(taken.candidate_id, []).append(taken)
    return [_candidate(row, sets.get(row.id, ())) for row in rows]


def _candidate(row: Row[Any], samples: Iterable[Row[Any]]) -> Candidate:
    try:
        values: list[dict[str, Any]] = [dict(zip(_SAMPLES, taken[1:], strict=True)) for taken in samples]
        return Candidate(
            gemm=parsed_gemm(row.text),
            device_key=row.device_key,
            regime=row.regime,
            config=Config.from_json(row.config),
            status=Status(row.status),
            sample_sets=tuple(map(SampleSet.from_json, values)),
            **{name: row._mapping[name] for name in CANDIDATE_MEMBERS},
        )
    except DAMAGE as error:
        name = f"candidate {row.config_digest} of {row.text} on {row.device_key}"
        raise DamagedRow(f"the row of {name} is damaged ({error}); put a backup back") from error


KERNEL_COLUMNS = (
    *KernelRow.__table__.columns,
    GemmRow.text,
    ArtifactRow.nbytes,
    CertificateRow.kernel_sha256.label("cert_kernel"),
    CertificateRow.passed,
    CertificateRow.tests,
    CertificateRow.reference,
    CertificateRow.environment,
    CertificateRow.at,
)


def select_kernels() -> Select[Any]:
    """Kernels with their gemm, artifact and certificate: rows for ``kernel_of``."""
    return (
        select(*KERNEL_COLUMNS)
        .join(GemmRow, GemmRow.id == KernelRow.gemm_id)
        .join(ArtifactRow, ArtifactRow.sha256 == KernelRow.artifact_sha256)
        .outerjoin(CertificateRow, CertificateRow.digest == KernelRow.certificate_digest)
    )


# With the parameter ``kernel_id``.
KERNEL_BY_ID = select_kernels().where(KernelRow.id == bindparam("kernel_id"))


def invariant_kernels(connection: Connection, gemm: Gemm) -> list[KernelRecord]:
    """The kernels whose rows may have to have the same bits as those of ``gemm``; damaged ones are left out."""
    same = [getattr(GemmRow, name) == getattr(gemm, name) for name in ("n", "k", "dtype", "layout")]
    ids = select(KernelRow.id).join(GemmRow).where(*same, GemmRow.text.contains(":invariant"))
    return [kernel for _, kernel in kernels_by_id(connection, connection.execute(ids).scalars().all())]


def kernels_by_id(
    connection: Connection, ids: Sequence[str], tell: Tell = log_once
) -> list[tuple[Row[Any], KernelRecord]]:
    """The kernels of these ids that are there, in any order, with their rows; those whose rows are damaged are left
    out, and ``tell`` is told of them."""

    def read(part: Sequence[str]) -> list[tuple[Row[Any], KernelRecord]]:
        return [(row, kernel_of(row)) for row in fetch(connection, select_kernels().where(KernelRow.id.in_(part)))]

    return [pair for part in parts(ids) for pair in sound(read, part, "kernel", tell)]


def kernel_of(row: Row[Any], gemm: Gemm | None = None) -> KernelRecord:
    """A kernel from a row of ``KERNEL_COLUMNS``, whose problem the caller may have. Raises DamagedRow for a row that
    makes no sense."""
    try:
        certificate = None
        if row.certificate_digest is not None:
            certificate = Certificate(
                row.cert_kernel, row.passed, tuple(row.tests), row.reference, dict(row.environment), row.at
            )
        return KernelRecord(
            gemm=gemm or parsed_gemm(row.text),
            device=Device.from_json(row.device),
            regime=row.regime,
            role=row.role,
            config=Config.from_json(row.config),
            kernel_sha256=row.kernel_sha256,
            artifact_sha256=row.artifact_sha256,
            artifact_bytes=row.nbytes,
            certificate=certificate,
            timings=Timings.from_json(row.timings),
            trials=row.trials,
            created_at=row.created_at,
            id=row.id,
            pinned=row.pinned_at is not None,
        )
    except DAMAGE as error:
        advice = f"delete it (tirgemm kernels delete {row.id}), or put a backup back"
        raise DamagedRow(f"the row of kernel {row.id} is damaged ({error}); {advice}") from error


def kernel_values(gemm_number: int, kernel: KernelRecord, certificate: str | None) -> dict[str, Any]:
    """A new row of kernels, but for its id, origin and times."""
    other = kernel.other_device
    return {
        "gemm_id": gemm_number,
        "device_key": kernel.device.key,
        **{name: getattr(kernel, name) for name in PLAIN_MEMBERS},
        **{name: getattr(kernel, name).to_json() for name in DOCUMENT_MEMBERS},
        "certificate_digest": certificate,
        # As long as the column is: records of elsewhere may have longer names, and PostgreSQL takes none.
        "other_device": other and other[:255],
    }


def put_kernel(connection: Connection, kernel: KernelRecord, values: Mapping[str, Any]) -> int:
    """Insert a kernel, a row of ``kernel_values`` with its id, origin and times, and what it is listed by; returns its
    row number."""
    seq = connection.execute(insert(KernelRow).values(values).returning(KernelRow.seq)).scalar_one()
    connection.execute(insert(KernelFigureRow).values(figure_values(seq, values["gemm_id"], kernel)))
    return seq


def figure_values(seq: int, gemm_number: int, kernel: KernelRecord) -> dict[str, Any]:
    """A new row of kernel_figures."""
    gemm, timing = kernel.gemm, kernel.timings.of(kernel.regime)
    us = timing.median_us if timing is not None and timing.median_us > 0 else None
    baseline = None if timing is None else timing.fastest_baseline
    return {
        "seq": seq,
        "gemm_id": gemm_number,
        **{name: getattr(gemm, name) for name in ("m_min", "m_max", "n", "k", "dtype")},
        "device_key": kernel.device.key,
        "regime": kernel.regime,
        "role": kernel.role,
        # As long as the columns are: records of elsewhere may have longer names, and PostgreSQL takes none.
        "family": kernel.config.family[:64],
        "work": float(gemm.flops),
        "us": us,
        "tflops": None if us is None else gemm.flops / us / 1e6,
        "default_ratio": None if timing is None else timing.ratio_to("default"),
        "baseline": baseline and baseline[:64],
        "baseline_ratio": None if timing is None or baseline is None else timing.ratio_to(baseline),
    }


KERNEL_ORDER = (KernelRow.stored_at.desc(), KernelRow.seq.desc())
