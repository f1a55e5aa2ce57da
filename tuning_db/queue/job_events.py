"""Events of jobs: appended, and read from behind one that was seen; the ends of jobs have ids among them.

Whoever tells of a job makes its end from the job itself. A row of ``events`` stands for it all the same, so that its
id is above all that came before it and below all that comes after it, once the job is put back.

All within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from tirgemm.events import BuildsCounted, Event
from tirgemm.status import ENDED, EndedStatus
from tirgemm.tuning.records.json_values import plain_json
from tirgemm.tuning_db.job_values import StoredEvent
from tirgemm.tuning_db.models import EventRow, JobRow
from tirgemm.tuning_db.queue.job_rows import unknown_job
from tirgemm.tuning_db.times import iso


def add_event(connection: Connection, job_id: str, event: Event, now: float) -> int:
    """Append an event, whose id is returned; 0, and nothing written, for how the builds of a job stand that has ended.
    Raises StoreError for a job that is not there."""
    # The lock keeps the ids of one job in the order in which they become visible, on PostgreSQL too.
    status = connection.execute(select(JobRow.status).where(JobRow.id == job_id).with_for_update()).scalar()
    if status is None:
        raise unknown_job(job_id)
    if status in ENDED and event.kind == BuildsCounted.KIND:
        return 0
    values = {"job_id": job_id, "kind": event.kind, "data": plain_json(event.to_json()), "at": iso(now)}
    number = connection.execute(insert(EventRow).values(values).returning(EventRow.id)).scalar_one()
    if status in ENDED:
        # What the worker of a cancelled job had still to tell comes before the end.
        _add_ends(connection, [job_id], status, now)
    return int(number)


def events_behind(connection: Connection, job_id: str, after: int, limit: int) -> list[StoredEvent]:
    """The events of a job behind the id ``after``, oldest first, without its ends."""
    wanted = select(*EventRow.__table__.columns).where(EventRow.job_id == job_id, EventRow.id > after)
    wanted = wanted.where(EventRow.kind.not_in(ENDED)).order_by(EventRow.id).limit(max(limit, 0))
    return [StoredEvent(row.id, row.job_id, row.kind, row.data, row.at) for row in connection.execute(wanted)]


def note_ends(connection: Connection, job_ids: Sequence[str], status: EndedStatus, now: float) -> None:
    """Give the ends of jobs, which have just ended with this status, their ids; forget how their builds stood, which
    grew with their time."""
    forgotten = (EventRow.job_id.in_(job_ids), EventRow.kind == BuildsCounted.KIND)
    connection.execute(delete(EventRow).where(*forgotten))
    _add_ends(connection, job_ids, status, now)


def _add_ends(connection: Connection, job_ids: Sequence[str], status: EndedStatus, now: float) -> None:
    ends = [{"job_id": job_id, "kind": status, "data": {}, "at": iso(now)} for job_id in job_ids]
    if ends:
        connection.execute(insert(EventRow), ends)
