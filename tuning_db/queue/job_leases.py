"""Leases on jobs: holders, fencing of writes, expiry.

All within the caller's transaction.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, SQLColumnExpression, and_, case, func, or_, select, update

from tirgemm.errors import DamagedRow, LeaseLost, WorkersDied
from tirgemm.status import LIVE, EndedStatus
from tirgemm.tuning.records.json_values import plain_text
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.models import JobRow
from tirgemm.tuning_db.queue.job_events import note_ends
from tirgemm.tuning_db.queue.job_rows import job_of, require_job
from tirgemm.tuning_db.times import iso

# A job of which so many workers died, one after the other and without a new measurement, is set aside: the next one
# would die of it, too.
MAX_DEATHS = 3
# The longest lease that a worker may ask for, and what is left of one that ends later than that: many times the beat of
# any worker. A job whose lease ran out so long ago is none that its worker works on.
LONGEST_LEASE_S, CUT_LEASE_S = 600.0, 30.0
# What the name of a lease's owner has behind that of its process.
_SLOT = re.compile(r"\.\d+$")


def held(job_id: str, owner: str) -> tuple[ColumnElement[bool], ...]:
    """The condition that ``owner`` holds a live job: to run it or, where it is queued, to build its fallback."""
    return (JobRow.id == job_id, JobRow.owner == owner, JobRow.status.in_(LIVE))


def require_held(connection: Connection, job_id: str, owner: str) -> None:
    """Raise LeaseLost unless the job is still ``owner``'s; until the transaction ends nobody can take it over.

    One that was cancelled is, until its worker has learnt of it: what that has measured by then is kept.
    """
    mine = select(JobRow.id).where(JobRow.id == job_id, JobRow.owner == owner)
    if connection.execute(mine.with_for_update(read=True)).first() is None:
        raise LeaseLost(
            f"job {job_id} is no longer held by {owner}, whose lease ran out: nothing more is written for it"
        )


def run_ended(until: float | SQLColumnExpression[Any]) -> dict[str, Any]:
    """The columns of a job that runs no longer, or never ran: the seconds of this run, which went on to ``until``, are
    added to those that the job has spent, as far as it was given them."""
    took = case((JobRow.claimed_at < until, until - JobRow.claimed_at), else_=0.0)
    # Building the default and certifying come on top of what was granted.
    counted = case((took > JobRow.granted_seconds, JobRow.granted_seconds), else_=took)
    return {"spent_seconds": JobRow.spent_seconds + counted, "claimed_at": None, "lease_until": None}


def released(until: float | SQLColumnExpression[Any]) -> dict[str, Any]:
    """The columns of a job that goes back into the queue, and of which nobody died: that is no attempt. Its run went on
    to ``until``."""
    begun = case((JobRow.status == "running", 1), else_=0)
    return {"status": "queued", "owner": None, "attempts": JobRow.attempts - begun} | run_ended(until)


def end_live(
    connection: Connection,
    condition: ColumnElement[bool],
    status: EndedStatus,
    now: float,
    until: float | None = None,
    **columns: Any,
) -> bool:
    """End the live jobs of ``condition`` with this status and these columns; whether there were any. Their runs went on
    to ``until``, by default to now."""
    values = {"status": status, "live_key": None, "finished_at": iso(now), **columns}
    values |= run_ended(now if until is None else until)
    ended = update(JobRow).where(condition, JobRow.status.in_(LIVE)).values(values).returning(JobRow.id)
    job_ids = connection.execute(ended).scalars().all()
    if job_ids:
        note_ends(connection, job_ids, status, now)
    return bool(job_ids)


def first_sound(connection: Connection, wanted: Any, now: float) -> Row[Any] | None:
    """The first row of a statement that selects live jobs, if there is one. Jobs ahead of it whose rows are damaged,
    which no worker can be handed, are failed."""
    row: Row[Any] | None
    while (row := connection.execute(wanted).first()) is not None:
        try:
            job_of(require_job(connection, row.id))
        except DamagedRow as error:
            rows.log_once(f"job {row.id} is failed: {error}")
            end_live(connection, JobRow.id == row.id, "failed", now, error=plain_text(f"{error.code}: {error}"))
        else:
            break
    return row


def note_progress(connection: Connection, job_id: str) -> None:
    """Forget the deaths of earlier workers of a job that got on: what kills at random must not set it aside."""
    own = case((JobRow.status == "running", 1), else_=0)
    connection.execute(update(JobRow).where(JobRow.id == job_id, JobRow.attempts > own).values(attempts=own))


def expired_owners(connection: Connection, now: float) -> list[str]:
    """The owners of live jobs all of whose leases have run out; whatever ends a job ends its lease. One that renews any
    of its leases is alive.

    A lease that ends later than any given now was given before the database's clock went back. It is cut: a worker that
    lives renews it at its next beat, and that of a dead one runs out.
    """
    newest, latest = func.max(JobRow.lease_until), now + LONGEST_LEASE_S
    # By the index of leases, of which few jobs have one.
    leased = select(JobRow.owner, newest > latest, newest > now).where(
        JobRow.lease_until > 0, JobRow.owner.is_not(None)
    )
    owners = connection.execute(leased.group_by(JobRow.owner)).all()
    if any(too_long for _, too_long, _ in owners):
        connection.execute(update(JobRow).where(JobRow.lease_until > latest).values(lease_until=now + CUT_LEASE_S))
    return [owner for owner, _, alive in owners if owner and not alive]


def is_of_one_process(owner: str, other: str) -> bool:
    """Whether two owners of leases are devices of one worker process."""
    return _SLOT.sub("", owner) == _SLOT.sub("", other)


def put_back_unreleased(connection: Connection, now: float, claimer: str) -> None:
    """Put back the jobs whose lease ran out long ago, though their worker lives: it could not release or finish them,
    because the database failed. Those of ``claimer``, which works on none, are put back as soon as it has run out. To
    be called when those of dead owners are back."""
    long_ago = and_(JobRow.lease_until <= now - CUT_LEASE_S, JobRow.owner.is_not(None))
    its_own = and_(JobRow.lease_until <= now, JobRow.owner == claimer)
    over = select(JobRow.id).where(or_(long_ago, its_own))
    job_ids = connection.execute(over.with_for_update(skip_locked=True)).scalars().all()
    if job_ids:
        connection.execute(update(JobRow).where(JobRow.id.in_(job_ids)).values(released(JobRow.lease_until)))


def declare_dead(connection: Connection, owner: str, now: float) -> list[str]:
    """Put the jobs of a dead owner back into the queue; returns their ids.

    The death counts against the job that it was busy with: the one whose fallback it built, if there is one, else the
    one that it ran. A job at its MAX_DEATHS-th is failed, with the reason.
    """
    mine = (JobRow.owner == owner, JobRow.status.in_(LIVE))
    columns = (JobRow.id, JobRow.status, JobRow.attempts, JobRow.lease_until)
    jobs = connection.execute(select(*columns).where(*mine).with_for_update(skip_locked=True)).all()
    building = {job.id for job in jobs if job.status == "queued"}
    for job in jobs:
        # A running one counted this attempt when it was claimed.
        change = int(job.id in building) if job.status == "queued" else -int(bool(building))
        attempts = job.attempts + change
        values = {"owner": None, "attempts": attempts}
        # A worker that was killed lived no longer than its lease.
        until = min(now, job.lease_until or now)
        if attempts >= MAX_DEATHS:
            words = f"{attempts} workers in a row died of this job, the last of them {owner}; it is set aside"
            error = f"{WorkersDied.code}: {words}"
            end_live(connection, JobRow.id == job.id, "failed", now, until, error=error, **values)
        else:
            values |= {"status": "queued"} | run_ended(until)
            connection.execute(update(JobRow).where(JobRow.id == job.id).values(values))
    return [job.id for job in jobs]
