"""``JobQueue``: tuning requests that outlive every process, claimed by workers under a lease.

The queue writes no events of its own accord: whoever changes a job says so with ``add_event``, before ``finish`` where
the event is the last one, so that a reader who sees a finished job and no further event has seen them all.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, insert, or_, select, update

from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.events import Event
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.status import ENDED, LIVE, EndedStatus, JobStatus
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.records.json_values import plain_json, plain_text
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import EventRow, GemmRow, JobRow, WorkerRow
from tirgemm.tuning_db.times import Clock, iso

Heartbeat = Literal["ok", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job is asked to tune, and for how long. Raises InvalidRequest."""

    gemm: Gemm
    device: Device
    regime: Regime = "sustained"
    trials: int = 32
    seconds: float = 120.0
    seed: int = 0
    verify: bool = True

    def __post_init__(self) -> None:
        regime_named(self.regime)
        Budget(self.trials, self.seconds)
        if not -(2**63) <= self.seed < 2**63:
            raise InvalidRequest(f"seed is {self.seed}; it must fit a signed integer of 64 bits")

    @property
    def budget(self) -> Budget:
        """What the search may spend in all; candidates that are recorded already count."""
        return Budget(trials=self.trials, seconds=self.seconds)

    @property
    def live_key(self) -> str:
        """Equal for requests that one running job can answer: budgets count by their power of two, seeds not at all."""
        budget = [math.ceil(math.log2(max(value, 1))) for value in (self.trials, self.seconds)]
        return rows.digest([str(self.gemm), self.device.key, self.regime, budget, self.verify])


@dataclass(frozen=True, slots=True)
class Job:
    """A tuning request and what became of it; times are ISO 8601 in UTC."""

    id: str
    request: JobRequest
    status: JobStatus
    fallback_id: str | None
    kernel_id: str | None
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    attempts: int
    owner: str | None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a job as it is stored. A later one has a larger id."""

    id: int
    job_id: str
    kind: str
    data: dict[str, Any]
    at: str


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process, its devices, and when it was last seen."""

    name: str
    devices: tuple[Device, ...]
    seen_at: str


class JobQueue:
    """The job, event and worker tables of a Database. ``clock`` gives seconds since 1970."""

    def __init__(self, db: Database, clock: Clock = time.time) -> None:
        self.db = db
        self.clock = clock

    # -- requests ------------------------------------------------------------------------------

    def submit(self, request: JobRequest, fallback_id: str | None = None) -> tuple[Job, bool]:
        """Queue a request, or find the live job that already answers it. True where a job was created.

        ``fallback_id`` is the kernel that answers until a new job is done: the stored one, where that is to be
        improved.
        """
        with self.db.write() as connection:
            values = {
                "id": secrets.token_hex(8),
                "live_key": request.live_key,
                "gemm_id": rows.gemm_id(self.db, connection, request.gemm),
                "device_key": request.device.key,
                "device": request.device.to_json(),
                "regime": request.regime,
                "trials": request.trials,
                "seconds": request.seconds,
                "seed": request.seed,
                "verify": request.verify,
                "status": "queued",
                "attempts": 0,
                "created_at": iso(self.clock()),
                "fallback_id": fallback_id,
            }
            statement = self.db.insert(JobRow).values(values).on_conflict_do_nothing(index_elements=["live_key"])
            created = connection.execute(statement.returning(JobRow.id)).scalar() is not None
            wanted = JobRow.id == values["id"] if created else JobRow.live_key == request.live_key
            found = connection.execute(_select_jobs().where(wanted)).first()
        # On PostgreSQL the live job can have ended between the two statements; then this request starts a new one.
        return (_job(found), created) if found is not None else self.submit(request, fallback_id)

    def cancel(self, job_id: str) -> Job:
        """End a live job as cancelled, at once; its worker learns of it at its next heartbeat. Ended jobs stay as they
        are."""
        with self.db.write() as connection:
            values = {"status": "cancelled", "live_key": None, "finished_at": iso(self.clock())}
            connection.execute(update(JobRow).where(JobRow.id == job_id, JobRow.status.in_(LIVE)).values(values))
            return _job(_require(connection, job_id))

    def job(self, job_id: str) -> Job | None:
        with self.db.read() as connection:
            found = connection.execute(_select_jobs().where(JobRow.id == job_id)).first()
        return None if found is None else _job(found)

    def jobs(
        self,
        limit: int = 100,
        status: JobStatus | None = None,
        gemm: Gemm | None = None,
        device_keys: Sequence[str] | None = None,
    ) -> list[Job]:
        """Jobs newest first; where given only those of this status, this problem, one of these devices."""
        wanted = _select_jobs().order_by(JobRow.seq.desc()).limit(max(limit, 0))
        if status is not None:
            wanted = wanted.where(JobRow.status == status)
        if gemm is not None:
            wanted = wanted.where(GemmRow.text == str(gemm))
        if device_keys is not None:
            wanted = wanted.where(JobRow.device_key.in_(list(device_keys)))
        return self._list(wanted)

    # -- workers' side -------------------------------------------------------------------------

    def claim(self, owner: str, device_keys: Sequence[str], lease_s: float, *, unverified: bool = False) -> Job | None:
        """Take the oldest job that waits, or whose owner's lease has run out, for one of these devices.

        ``unverified`` also takes jobs for devices that are not here and that ask for no verification.
        """
        now = self.clock()
        waits = or_(JobRow.status == "queued", and_(JobRow.status == "running", JobRow.lease_until <= now))
        serves: ColumnElement[bool] = JobRow.device_key.in_(list(device_keys))
        if unverified:
            serves = or_(serves, JobRow.verify.is_(False))
        wanted = select(JobRow.id, JobRow.started_at).where(waits, serves).order_by(JobRow.seq).limit(1)
        with self.db.write() as connection:
            found = connection.execute(wanted.with_for_update(skip_locked=True)).first()
            if found is None:
                return None
            values = {
                "status": "running",
                "owner": owner,
                "lease_until": now + lease_s,
                "attempts": JobRow.attempts + 1,
                "started_at": found.started_at or iso(now),
            }
            connection.execute(update(JobRow).where(JobRow.id == found.id).values(values))
            return _job(_require(connection, found.id))

    def heartbeat(self, job_id: str, owner: str, lease_s: float) -> Heartbeat:
        """Extend the lease. ``cancelled``: stop; ``lost``: another owner has it, or it has ended: stop and write
        nothing."""
        with self.db.write() as connection:
            values = {"lease_until": self.clock() + lease_s}
            extended = connection.execute(update(JobRow).where(*_held(job_id, owner)).values(values))
            if extended.rowcount:
                return "ok"
            found = connection.execute(select(JobRow.status).where(JobRow.id == job_id)).scalar()
        return "cancelled" if found == "cancelled" else "lost"

    def finish(
        self, job_id: str, owner: str, status: EndedStatus, kernel_id: str | None = None, error: str | None = None
    ) -> bool:
        """End a job that ``owner`` still holds. False, and nothing written, where it was cancelled or taken over."""
        if status not in ENDED:
            raise InvalidRequest(f"a job ends as one of {', '.join(ENDED)}, not {status!r}")
        values = {
            "status": status,
            "kernel_id": kernel_id,
            "error": None if error is None else plain_text(error),
            "live_key": None,
            "lease_until": None,
            "finished_at": iso(self.clock()),
        }
        with self.db.write() as connection:
            return bool(connection.execute(update(JobRow).where(*_held(job_id, owner)).values(values)).rowcount)

    def release(self, job_id: str, owner: str) -> bool:
        """Put a job that ``owner`` holds back into the queue at once. False where it was cancelled or taken over."""
        values = {"status": "queued", "owner": None, "lease_until": None}
        with self.db.write() as connection:
            return bool(connection.execute(update(JobRow).where(*_held(job_id, owner)).values(values)).rowcount)

    def set_fallback(self, job_id: str, kernel_id: str) -> None:
        """Name the kernel that answers until the search is done, whatever state the job is in."""
        with self.db.write() as connection:
            found = connection.execute(update(JobRow).where(JobRow.id == job_id).values(fallback_id=kernel_id))
            if not found.rowcount:
                raise _unknown(job_id)

    def pending_fallbacks(self, device_keys: Sequence[str]) -> list[Job]:
        """Jobs of these devices that wait and have no fallback yet, oldest first."""
        waits = (JobRow.status == "queued", JobRow.fallback_id.is_(None), JobRow.device_key.in_(list(device_keys)))
        return self._list(_select_jobs().where(*waits).order_by(JobRow.seq))

    # -- events --------------------------------------------------------------------------------

    def add_event(self, job_id: str, event: Event) -> int:
        """Append an event; StoreError for a job that is not there."""
        with self.db.write() as connection:
            # The lock keeps the ids of one job in the order in which they become visible, on PostgreSQL too.
            if connection.execute(select(JobRow.seq).where(JobRow.id == job_id).with_for_update()).first() is None:
                raise _unknown(job_id)
            values = {
                "job_id": job_id,
                "kind": event.kind,
                "data": plain_json(event.to_json()),
                "at": iso(self.clock()),
            }
            return int(connection.execute(insert(EventRow).values(values).returning(EventRow.id)).scalar_one())

    def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        """The events of a job behind the id ``after``, oldest first."""
        wanted = select(*EventRow.__table__.columns).where(EventRow.job_id == job_id, EventRow.id > after)
        with self.db.read() as connection:
            found = connection.execute(wanted.order_by(EventRow.id).limit(max(limit, 0))).all()
        return [StoredEvent(row.id, row.job_id, row.kind, row.data, row.at) for row in found]

    # -- the registry of workers ---------------------------------------------------------------

    def register_worker(self, name: str, devices: Sequence[Device], seen: float | None = None) -> None:
        """Say that a worker is alive (by default now) and what it serves; the devices are described in passing."""
        values = {
            "name": name,
            "devices": [device.to_json() for device in devices],
            "seen": self.clock() if seen is None else seen,
        }
        statement = self.db.insert(WorkerRow).values(values)
        changes = {column: statement.excluded[column] for column in ("devices", "seen")}
        with self.db.write() as connection:
            connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=changes))
            for device in devices:
                rows.put_device(self.db, connection, device)

    def remove_worker(self, name: str) -> None:
        """Forget a worker that is shutting down."""
        with self.db.write() as connection:
            connection.execute(WorkerRow.__table__.delete().where(WorkerRow.name == name))  # type: ignore[attr-defined]

    def live_workers(self, max_age_s: float) -> list[WorkerRecord]:
        """Workers seen within the last ``max_age_s`` seconds, by name."""
        wanted = select(*WorkerRow.__table__.columns).where(WorkerRow.seen >= self.clock() - max_age_s)
        with self.db.read() as connection:
            found = connection.execute(wanted.order_by(WorkerRow.name)).all()
        return [WorkerRecord(row.name, tuple(map(Device.from_json, row.devices)), iso(row.seen)) for row in found]

    def _list(self, wanted: Select[Any]) -> list[Job]:
        with self.db.read() as connection:
            return [_job(row) for row in connection.execute(wanted).all()]


def _select_jobs() -> Any:
    return select(*JobRow.__table__.columns, GemmRow.text).join(GemmRow, GemmRow.id == JobRow.gemm_id)


def _require(connection: Connection, job_id: str) -> Row[Any]:
    found: Row[Any] | None = connection.execute(_select_jobs().where(JobRow.id == job_id)).first()
    if found is None:
        raise _unknown(job_id)
    return found


def _unknown(job_id: str) -> StoreError:
    return StoreError(f"no job has the id {job_id!r:.80}")


def _held(job_id: str, owner: str) -> tuple[Any, ...]:
    return (JobRow.id == job_id, JobRow.owner == owner, JobRow.status == "running")


def _job(row: Row[Any]) -> Job:
    request = JobRequest(
        Gemm.parse(row.text), Device.from_json(row.device), row.regime, row.trials, row.seconds, row.seed, row.verify
    )
    return Job(
        row.id,
        request,
        row.status,
        row.fallback_id,
        row.kernel_id,
        row.error,
        row.created_at,
        row.started_at,
        row.finished_at,
        row.attempts,
        row.owner,
    )
