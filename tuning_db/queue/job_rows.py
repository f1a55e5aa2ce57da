"""Rows of jobs within a transaction: added or joined, read, in the order of the queue."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from tirgemm.device import Device
from tirgemm.errors import DamagedRow, InvalidRequest, JobNotRetried, QueueFull, StoreError
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.process.spans import traceparent
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.job_values import Job, JobRequest, Window
from tirgemm.tuning_db.models import GemmRow, JobRow, KernelRow
from tirgemm.tuning_db.times import iso

MAX_RETRIES = 3
MAX_REASON = 200
# Of a request, under one name in its value and its row.
_MEMBERS = ("regime", "trials", "seconds", "seed", "verify", "priority", "other_devices")
QUEUE_ORDER = (JobRow.priority.desc(), JobRow.seq)


def window_open(now: float) -> ColumnElement[bool]:
    """The condition that a job may start at ``now``, seconds since 1970."""
    minute = int(now // 60) % (24 * 60)
    begun, ahead = JobRow.window_start <= minute, JobRow.window_end > minute
    past_midnight = JobRow.window_start > JobRow.window_end
    return or_(JobRow.window_start.is_(None), and_(begun, ahead), and_(past_midnight, or_(begun, ahead)))


def put_back(connection: Connection, job_id: str, reason: str, limit: int, now: float) -> bool:
    """Put a job that failed or was cancelled back into the queue; False where it was put back for this reason already.
    Raises JobNotRetried for one that cannot be, or was ``limit`` times."""
    # Who asks for the same at the same time waits here, and sees that it was done.
    connection.execute(select(JobRow.id).where(JobRow.id == job_id).with_for_update())
    row = require_job(connection, job_id)
    job = job_of(row)
    ended = job.status in ("failed", "cancelled")
    if not ended and job.retries and job.retry_reason == (reason or None):
        return False
    if not ended:
        raise JobNotRetried(f"job {job.id} is {job.status}; only a failed or cancelled job can be retried")
    if job.retries >= limit:
        raise JobNotRetried(f"job {job.id} was retried {job.retries} times already, which is as often as may be")
    # Of what was asked for, not of what a batch has granted.
    live_key = replace(job.request, trials=row.trials, seconds=row.seconds).live_key
    values = {
        "status": "queued",
        "live_key": live_key,
        "error": None,
        "finished_at": None,
        "attempts": 0,
        "owner": None,
        "asked_at": iso(now),
        "retries": JobRow.retries + 1,
        "retry_reason": reason or None,
    }
    try:
        with connection.begin_nested():
            connection.execute(update(JobRow).where(JobRow.id == job_id).values(values))
    except IntegrityError as error:
        same = connection.execute(select(JobRow.id).where(JobRow.live_key == live_key)).scalar()
        if same is None:  # on PostgreSQL it has ended meanwhile
            raise
        raise JobNotRetried(f"job {same} works on the request of job {job.id} already") from error
    return True


class NewJob:
    """A request, and the row of its job but for what the transaction knows. To be made before that begins."""

    def __init__(self, request: JobRequest, columns: dict[str, Any]) -> None:
        window = request.window
        self.request = request
        self.values: dict[str, Any] = {
            "id": secrets.token_hex(8),
            "live_key": request.live_key,
            "device_key": request.device.key,
            "device": request.device.to_json(),
            "effort": request.effort.value,
            **{name: getattr(request, name) for name in _MEMBERS},
            "window_start": window.start if window else None,
            "window_end": window.end if window else None,
            "status": "queued",
            "attempts": 0,
            "traceparent": traceparent(),
            **columns,
        }

    @property
    def live_key(self) -> str:
        key: str = self.values["live_key"]
        return key


def add_jobs(
    db: Database, connection: Connection, wanted: Sequence[NewJob], now: float
) -> tuple[list[str], frozenset[str]]:
    """Add a job for each of ``wanted``, in this order, or join the live one of the same request: their ids (empty where
    that one ended at this moment), and which of them were added.

    The number of statements does not grow with that of the jobs: the transaction holds SQLite's only lock.
    """
    gemms = rows.gemm_ids(db, connection, {new.request.gemm for new in wanted})
    at = {"created_at": iso(now), "asked_at": iso(now)}
    values = [new.values | {"gemm_id": gemms[new.request.gemm]} | at for new in wanted]
    # Of the same live_key, or of the same id.
    statement = db.insert(JobRow).on_conflict_do_nothing()
    added = connection.execute(statement.returning(JobRow.live_key, JobRow.id), values).all()
    ids = {row.live_key: row.id for row in added}
    joined: dict[tuple[int, bool], list[str]] = defaultdict(list)
    for new in wanted:
        if new.live_key not in ids:
            joined[new.request.priority, new.request.window is None].append(new.live_key)
    for (priority, any_time), keys in joined.items():
        raised = case((JobRow.priority < priority, priority), else_=JobRow.priority)
        changes: dict[str, Any] = {"priority": raised}
        if any_time:
            changes |= {"window_start": None, "window_end": None}
        for part in rows.parts(keys):
            same = update(JobRow).where(JobRow.live_key.in_(part)).values(changes)
            ids |= {row.live_key: row.id for row in connection.execute(same.returning(JobRow.live_key, JobRow.id))}
    return [ids.get(new.live_key, "") for new in wanted], frozenset(row.id for row in added)


def kept_kernels(connection: Connection, kernel_ids: Collection[str | None]) -> frozenset[str]:
    """Those of these kernels that there are, and that nobody deletes before the transaction ends; the others were
    deleted since whoever names them has seen them. To be asked before jobs are written, as a deletion locks them."""
    wanted = sorted({kernel_id for kernel_id in kernel_ids if kernel_id is not None})
    there = sorted(rows.among(connection, select(KernelRow.seq, KernelRow.id), KernelRow.id, wanted))
    # In the order in which all who lock several kernels do, lest two wait for each other.
    locked = select(KernelRow.id).order_by(KernelRow.seq).with_for_update(read=True, key_share=True)
    return frozenset(row.id for row in rows.among(connection, locked, KernelRow.id, [row.id for row in there]))


def require_room(connection: Connection, max_queued: int | None, added: int = 1) -> None:
    """Raise QueueFull where more than ``max_queued`` jobs wait, with those just ``added``; InvalidRequest where these
    alone are more, so that there will never be room for them."""
    if max_queued is None:
        return
    if added > max_queued:
        words = f"{added} new jobs are more than the {max_queued} that may wait (TIRGEMM_MAX_QUEUED)"
        raise InvalidRequest(f"{words}; ask for them in smaller batches")
    wanted = select(func.count()).select_from(JobRow).where(JobRow.status == "queued")
    waiting = connection.execute(wanted).scalar_one()
    if waiting > max_queued:
        others = f"{waiting - added} {'job waits' if waiting - added == 1 else 'jobs wait'} already"
        raise QueueFull(f"{others}, this request adds {added}, and at most {max_queued} may wait; ask again later")


def select_jobs() -> Any:
    """Jobs with their problems: rows for ``job_of``."""
    return select(*JobRow.__table__.columns, GemmRow.text).join(GemmRow, GemmRow.id == JobRow.gemm_id)


def require_job(connection: Connection, job_id: str) -> Row[Any]:
    """The row of a job. Raises StoreError where there is none, DamagedRow where it cannot be read."""
    row = find_job(connection, job_id)
    if row is None:
        raise unknown_job(job_id)
    return row


def find_job(connection: Connection, job_id: str) -> Row[Any] | None:
    """The row of a job, if it is there. Raises DamagedRow where it cannot be read."""
    return next(iter(rows.fetch(connection, select_jobs().where(JobRow.id == job_id))), None)


def read_jobs(connection: Connection, wanted: Any, limit: int, tell: rows.Tell = rows.log_once) -> list[Job]:
    """The first ``limit`` jobs of a statement of ``select_jobs``, in its order; those whose rows are damaged are left
    out, and ``tell`` is told of them."""

    def read(statement: Any) -> list[Job]:
        return [job_of(row) for row in rows.fetch(connection, statement)]

    try:
        return read(wanted.limit(limit))
    except DamagedRow:
        ids = wanted.with_only_columns(JobRow.id, maintain_column_froms=True)
    jobs: list[Job] = []
    at_once, seen = min(limit, rows.IDS_AT_ONCE), 0
    while len(jobs) < limit and (part := connection.execute(ids.limit(at_once).offset(seen)).scalars().all()):
        jobs += rows.sound(lambda some: read(wanted.where(JobRow.id.in_(some))), part, "job", tell)
        seen += len(part)
    return jobs[:limit]


def unknown_job(job_id: str) -> StoreError:
    """The error for an id that no job has."""
    return StoreError(f"no job has the id {job_id!r:.80}")


def job_of(row: Row[Any]) -> Job:
    """A job from a row of ``select_jobs``. Raises DamagedRow for a row that makes no sense."""
    try:
        request = JobRequest(
            rows.parsed_gemm(row.text),
            Device.from_json(row.device),
            row.regime,
            row.trials if row.granted_trials is None else row.granted_trials,
            row.seconds if row.granted_seconds is None else row.granted_seconds,
            Effort(row.effort),
            row.seed,
            row.verify,
            row.priority,
            None if row.window_start is None else Window(row.window_start, row.window_end),
            row.other_devices,
        )
        return Job(
            request=request,
            **{item.name: row._mapping[item.name] for item in fields(Job) if item.name != "request"},
        )
    except rows.DAMAGE as error:
        raise DamagedRow(f"the row of job {row.id} is damaged ({error}); put a backup back") from error
