"""``SqlStore``: the tuner's Store on a Database."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from sqlalchemy import Boolean, Connection, bindparam, delete, func, insert, select, update

from tirgemm.device import Device
from tirgemm.errors import DamagedRow, KernelPinned, StoreError
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import SEARCHED, Candidate, CandidateKey, KernelRecord, SampleSet, Status, latest_us
from tirgemm.tuning.records.json_values import merged, plain_candidate, plain_samples
from tirgemm.tuning.records.offer import Offer
from tirgemm.tuning.records.row_signatures import require_same_rows
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.answers.answer_choice import ANSWER_ORDER, may_answer
from tirgemm.tuning_db.answers.kernel_document import put_documents
from tirgemm.tuning_db.answers.kernel_version import raise_version
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import (
    ArtifactRow,
    AttemptRow,
    CandidateRow,
    CertificateRow,
    DeviceRow,
    GemmRow,
    JobRow,
    KernelRow,
    SampleSetRow,
)
from tirgemm.tuning_db.nearest_candidates import nearest_candidates
from tirgemm.tuning_db.queue.job_leases import note_progress, require_held
from tirgemm.tuning_db.revoked_artifacts import revocation
from tirgemm.tuning_db.times import iso

# Built once: to build it takes longer than to run it.
_ANSWER = (
    rows.select_kernels()
    .where(
        GemmRow.text == bindparam("gemm"),
        KernelRow.device_key == bindparam("device_key"),
        KernelRow.regime == bindparam("regime"),
        may_answer(bindparam("other_devices", type_=Boolean)),
    )
    .order_by(*ANSWER_ORDER)
    .limit(1)
)
_IS_PROBLEM = (
    GemmRow.text == bindparam("gemm"),
    CandidateRow.device_key == bindparam("device_key"),
    CandidateRow.regime == bindparam("regime"),
)
_IS_KEY = (*_IS_PROBLEM, CandidateRow.config_digest == bindparam("config_digest"))
_OF_PROBLEM, _OF_KEY = rows.CandidateQuery.where(_IS_PROBLEM), rows.CandidateQuery.where(_IS_KEY)
_NUMBER = select(CandidateRow.id).join(GemmRow).where(*_IS_KEY).with_for_update(of=CandidateRow)
# Their parameters are those of ``_named_by`` with ``of_`` before each: without it they would be columns to be set.
_NAMES = ("gemm_id", "device_key", "regime", "config_digest")
_ATTEMPTS = tuple(AttemptRow.__table__.c[name] == bindparam(f"of_{name}") for name in _NAMES)
_NEWEST_ATTEMPT = select(func.coalesce(func.max(AttemptRow.number), 0)).where(*_ATTEMPTS)
_OPEN_ATTEMPT = (*_ATTEMPTS, AttemptRow.number == bindparam("of_number"), AttemptRow.recorded_at.is_(None))
_RECORD_ATTEMPT = update(AttemptRow).where(*_OPEN_ATTEMPT).values(recorded_at=bindparam("at"))
_WITHDRAW_ATTEMPT = delete(AttemptRow).where(*_OPEN_ATTEMPT)
_KNOWN_SAMPLES = select(SampleSetRow.digest).where(SampleSetRow.candidate_id == bindparam("candidate"))
_SEARCH_SETS = (
    select(*rows.SAMPLE_COLUMNS)
    .where(SampleSetRow.candidate_id == bindparam("candidate"), SampleSetRow.reason.in_(SEARCHED))
    .order_by(SampleSetRow.id)
)
_PUT_SEARCH_US = update(CandidateRow).where(CandidateRow.id == bindparam("candidate")).values(search_us=bindparam("us"))


class SqlStore:
    """A ``tirgemm.tuning.records.store.Store``: every method is one transaction."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._fence = threading.local()

    @contextmanager
    def fenced(self, job_id: str, owner: str) -> Iterator[None]:
        """Within the block this thread records attempts, candidates and kernels only while ``owner`` holds the job.

        Each of these writes raises LeaseLost once the job is another's.
        """
        before = self._lease
        self._fence.lease = (job_id, owner)
        try:
            yield
        finally:
            self._fence.lease = before

    @property
    def _lease(self) -> tuple[str, str] | None:
        """The job that this thread writes for, and the holder of its lease."""
        return cast("tuple[str, str] | None", getattr(self._fence, "lease", None))

    @contextmanager
    def _record(self) -> Iterator[Connection]:
        with self.db.write() as connection:
            if self._lease:
                require_held(connection, *self._lease)
            yield connection

    # -- candidates ----------------------------------------------------------------------------

    def add_candidate(self, candidate: Candidate) -> None:
        with self._record() as connection:
            write_candidate(self.db, connection, plain_candidate(candidate))
            if self._lease and candidate.status is Status.MEASURED:
                note_progress(connection, self._lease[0])

    def add_samples(self, key: CandidateKey, samples: SampleSet) -> None:
        samples = plain_samples(samples)
        with self._record() as connection:
            number = connection.execute(_NUMBER, _key_values(key)).scalar() or self._adopt(connection, key)
            if number is None:
                raise StoreError(
                    f"no candidate {key.config_digest} of {key.gemm} is recorded; record it before its samples"
                )
            connection.execute(insert(SampleSetRow), rows.sample_values(number, samples))
            put_search_us(connection, number, [samples])

    def begin_attempt(self, key: CandidateKey) -> int:
        with self._record() as connection:
            gemm_id = rows.gemm_id(self.db, connection, key.gemm)
            if not self.db.is_sqlite:
                # The primary key would refuse the second of two counters; waiting here gives it the next number.
                connection.execute(select(GemmRow.id).where(GemmRow.id == gemm_id).with_for_update())
            number = int(connection.execute(_NEWEST_ATTEMPT, _attempts_of(gemm_id, key)).scalar_one()) + 1
            values = _named_by(gemm_id, key) | {"number": number, "started_at": iso()}
            connection.execute(insert(AttemptRow), values)
        return number

    def withdraw_attempt(self, key: CandidateKey, number: int) -> None:
        with self.db.write() as connection:
            gemm_id = rows.gemm_id(self.db, connection, key.gemm)
            connection.execute(_WITHDRAW_ATTEMPT, _attempts_of(gemm_id, key) | {"of_number": number})

    def candidates(self, gemm: Gemm, device_key: str, regime: Regime) -> list[Candidate]:
        return self._candidates(_OF_PROBLEM, {"gemm": str(gemm), "device_key": device_key, "regime": regime})

    def candidate(self, key: CandidateKey) -> Candidate | None:
        candidates = self._candidates(_OF_KEY, _key_values(key))
        return candidates[0] if candidates else None

    def history(
        self, device_key: str, regime: Regime, limit: int = 10_000, near: Gemm | None = None
    ) -> list[Candidate]:
        where = (
            CandidateRow.device_key == device_key,
            CandidateRow.regime == regime,
            CandidateRow.status == str(Status.MEASURED),
        )
        if near is not None:
            with suppress(DamagedRow), self.db.read() as connection:
                return nearest_candidates(connection, near, where, max(limit, 0))
        return self._candidates(rows.CandidateQuery.where(where, max(limit, 0)))

    def offer(self, gemm: Gemm, device: Device, regime: Regime, *, other_devices: bool = False) -> Offer | None:
        del gemm, device, regime, other_devices
        return None

    # -- kernels -------------------------------------------------------------------------------

    def put_kernel(self, kernel: KernelRecord) -> KernelRecord:
        with self._record() as connection:
            written = write_kernel(self.db, connection, kernel)
            raise_version(self.db, connection)
            return written

    def kernel(
        self,
        gemm: Gemm,
        device_key: str,
        regime: Regime,
        *,
        other_devices: bool = False,
        without: Collection[str] = (),
    ) -> KernelRecord | None:
        wanted = {"gemm": str(gemm), "device_key": device_key, "regime": regime, "other_devices": other_devices}
        passed_over = [*without]
        while True:
            query = _ANSWER.where(KernelRow.id.not_in(passed_over)) if passed_over else _ANSWER
            with self.db.read() as connection:
                row = connection.execute(query, wanted).first()
            if row is None or not revocation(self.db, row.artifact_sha256):
                return None if row is None else rows.kernel_of(row, gemm)
            passed_over.append(row.id)

    def kernel_by_id(self, kernel_id: str) -> KernelRecord | None:
        with self.db.read() as connection:
            row = connection.execute(rows.KERNEL_BY_ID, {"kernel_id": kernel_id}).first()
        return None if row is None else rows.kernel_of(row)

    def kernels(self, limit: int = 100, after: str = "") -> list[KernelRecord]:
        newest = select(KernelRow.seq, KernelRow.id).order_by(KernelRow.seq.desc())
        kernels: list[tuple[int, KernelRecord]] = []
        with self.db.read() as connection:
            behind = newest
            if after:
                seq = connection.execute(select(KernelRow.seq).where(KernelRow.id == after)).scalar()
                if seq is None:
                    raise StoreError(f"no kernel has the id {after!r}; list from the start or behind a listed id")
                behind = newest.where(KernelRow.seq < seq)
            # Damaged ones are left out: then there is room for more.
            while page := connection.execute(behind.limit(max(limit - len(kernels), 0))).all():
                ids = [row.id for row in page]
                kernels += [(row.seq, kernel) for row, kernel in rows.kernels_by_id(connection, ids)]
                behind = newest.where(KernelRow.seq < page[-1].seq)
        return [kernel for _, kernel in sorted(kernels, key=lambda pair: -pair[0])]

    def delete_kernel(self, kernel_id: str) -> bool:
        """Forget a kernel; False where there is none of this id. Its candidates and their samples stay.

        Its certificate, and its artifact with the blob, go with it unless another kernel names them. Jobs that name it,
        running ones too, go on without. Raises KernelPinned.
        """
        with self.db.write() as connection:
            # No more than is needed: a row that is damaged is deleted, too.
            names = ("seq", "pinned_at", "certificate_digest", "artifact_sha256")
            wanted = select(*(KernelRow.__table__.columns[name] for name in names))
            row = connection.execute(wanted.where(KernelRow.id == kernel_id).with_for_update()).first()
            if row is None:
                return False
            if row.pinned_at is not None:
                raise KernelPinned(f"kernel {kernel_id} is pinned since {row.pinned_at}; unpin it first")
            for column in (JobRow.fallback_id, JobRow.kernel_id):
                connection.execute(update(JobRow).where(column == kernel_id).values({column.key: None}))
            connection.execute(delete(KernelRow).where(KernelRow.seq == row.seq))
            unnamed = ~select(KernelRow.seq).where(KernelRow.certificate_digest == row.certificate_digest).exists()
            connection.execute(delete(CertificateRow).where(CertificateRow.digest == row.certificate_digest, unnamed))
            unnamed = ~select(KernelRow.seq).where(KernelRow.artifact_sha256 == row.artifact_sha256).exists()
            gone = connection.execute(delete(ArtifactRow).where(ArtifactRow.sha256 == row.artifact_sha256, unnamed))
            raise_version(self.db, connection)
        if gone.rowcount:
            self.db.blobs.delete(row.artifact_sha256)
        return True

    # -- devices and blobs ---------------------------------------------------------------------

    def put_device(self, device: Device) -> None:
        with self.db.write() as connection:
            rows.put_device(self.db, connection, device)

    def device(self, device_key: str) -> Device | None:
        """A device class as it was described last."""
        with self.db.read() as connection:
            description = connection.execute(select(DeviceRow.description).where(DeviceRow.key == device_key)).scalar()
        return None if description is None else Device.from_json(description)

    def put_blob(self, data: bytes) -> str:
        return self.db.blobs.put(data)

    def has_blob(self, sha256: str) -> bool:
        return self.db.blobs.has(sha256)

    def get_blob(self, sha256: str) -> bytes:
        return self.db.blobs.get(sha256)

    def _adopt(self, connection: Connection, key: CandidateKey) -> int | None:
        """The row number of a candidate that a layer beneath the database has, once it is taken over; None: no such."""
        del connection, key
        return None

    def _candidates(self, query: rows.CandidateQuery, values: dict[str, Any] | None = None) -> list[Candidate]:
        with self.db.read() as connection:
            return rows.read_candidates(connection, query, values)


def write_candidate(db: Database, connection: Connection, candidate: Candidate, origin: str = "") -> int:
    """Insert or replace a candidate, add the sample sets that it lacks; returns its row number.

    Without ``origin`` it was tried here: that marks its attempt as recorded.
    """
    gemm_id, key = rows.gemm_id(db, connection, candidate.gemm), candidate.key
    values = rows.candidate_values(candidate)
    identity = _named_by(gemm_id, key)
    row = identity | values | {"origin": origin, "created_at": values["updated_at"]}
    statement = db.upsert(CandidateRow, tuple(identity), (*values, "origin"))
    number = int(connection.execute(statement, row).scalar_one())
    add_missing_samples(connection, number, candidate.sample_sets, origin)
    if not origin:
        mine = _attempts_of(gemm_id, key) | {"of_number": candidate.attempt, "at": values["updated_at"]}
        connection.execute(_RECORD_ATTEMPT, mine)
    return number


def add_new_candidates(db: Database, connection: Connection, candidates: Sequence[Candidate], origin: str) -> int:
    """Insert candidates of elsewhere that are not stored yet, with their sample sets; returns how many sets."""
    if not candidates:
        return 0
    gemms = {gemm: rows.gemm_id(db, connection, gemm) for gemm in {candidate.gemm for candidate in candidates}}
    values = [
        rows.candidate_values(candidate)
        | _named_by(gemms[candidate.gemm], candidate.key)
        | {"search_us": candidate.search_us, "origin": origin, "created_at": iso()}
        for candidate in candidates
    ]
    inserted = insert(CandidateRow).returning(CandidateRow.id, sort_by_parameter_order=True)
    numbers = connection.execute(inserted, values).scalars().all()
    samples = [
        rows.sample_values(number, taken, origin)
        for number, candidate in zip(numbers, candidates, strict=True)
        for taken in merged((), candidate.sample_sets)
    ]
    if samples:
        connection.execute(insert(SampleSetRow), samples)
    return len(samples)


def add_missing_samples(
    connection: Connection, number: int, sample_sets: tuple[SampleSet, ...], origin: str = ""
) -> int:
    """Append those sample sets that a candidate does not have yet; returns how many."""
    known = set(connection.execute(_KNOWN_SAMPLES, {"candidate": number}).scalars())
    values = [(samples, rows.sample_values(number, samples, origin)) for samples in merged((), sample_sets)]
    fresh = [(samples, row) for samples, row in values if row["digest"] not in known]
    if fresh:
        connection.execute(insert(SampleSetRow), [row for _, row in fresh])
    put_search_us(connection, number, [samples for samples, _ in fresh])
    return len(fresh)


def put_search_us(connection: Connection, number: int, sample_sets: Sequence[SampleSet]) -> None:
    """Keep the column equal to ``Candidate.search_us`` where ``sample_sets`` were appended, and as it is where an
    earlier one is damaged."""
    if any(samples.reason in SEARCHED for samples in sample_sets):
        with suppress(*rows.DAMAGE):
            searched = connection.execute(_SEARCH_SETS, {"candidate": number}).mappings().all()
            us = latest_us([SampleSet.from_json(dict(row)) for row in searched])
            connection.execute(_PUT_SEARCH_US, {"candidate": number, "us": us})


def write_kernel(
    db: Database, connection: Connection, kernel: KernelRecord, origin: str = "", stored_at: str = ""
) -> KernelRecord:
    """Insert a kernel with its device, artifact, certificate and document; returns it as it is stored. Raises
    VerificationFailed for an invariant one that gives a row other bits than one that is stored, or is a set whose
    members give it different ones.

    With ``origin`` and ``stored_at`` it keeps its id and takes its place by that time; without, it comes before all
    that are there.
    """
    if kernel.gemm.invariant:
        require_same_rows(kernel, rows.invariant_kernels(connection, kernel.gemm))
    gemm_id = rows.gemm_id(db, connection, kernel.gemm)
    rows.put_device(db, connection, kernel.device, replace=not origin)
    certificate = rows.put_certificate(db, connection, kernel.certificate)
    now = iso()
    artifact = {
        "sha256": kernel.artifact_sha256,
        "nbytes": kernel.artifact_bytes,
        "kernel_sha256": kernel.kernel_sha256,
        "created_at": now,
    }
    connection.execute(db.insert(ArtifactRow).values(artifact).on_conflict_do_nothing())
    if not stored_at:
        newest = select(func.max(KernelRow.stored_at)).where(
            KernelRow.gemm_id == gemm_id, KernelRow.device_key == kernel.device.key, KernelRow.regime == kernel.regime
        )
        stored_at = max(now, connection.execute(newest).scalar() or "")
    kernel_id = kernel.id if origin else secrets.token_hex(8)
    values = rows.kernel_values(gemm_id, kernel, certificate) | {
        "id": kernel_id,
        "origin": origin,
        "created_at": kernel.created_at or now,
        "stored_at": stored_at,
    }
    seq = rows.put_kernel(connection, kernel, values)
    written = rows.kernel_of(connection.execute(rows.KERNEL_BY_ID, {"kernel_id": kernel_id}).one())
    put_documents(db, connection, [(seq, written)])
    return written


def _key_values(key: CandidateKey) -> dict[str, Any]:
    """The parameters of ``_IS_KEY``."""
    return {"gemm": str(key.gemm)} | {name: getattr(key, name) for name in _NAMES[1:]}


def _named_by(gemm_id: int, key: CandidateKey) -> dict[str, Any]:
    """The columns that a candidate and its attempts are named by."""
    return {"gemm_id": gemm_id, **{name: getattr(key, name) for name in _NAMES[1:]}}


def _attempts_of(gemm_id: int, key: CandidateKey) -> dict[str, Any]:
    """The parameters of ``_ATTEMPTS``."""
    return {f"of_{name}": value for name, value in _named_by(gemm_id, key).items()}
