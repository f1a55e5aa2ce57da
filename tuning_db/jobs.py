"""``JobQueue``: tuning requests that outlive every process, claimed by workers under a lease.

The queue tells no events of its own accord: whoever changes a job says so with ``add_event``, before ``finish`` where
the event is the last one, so that a reader who sees a finished job and no further event has seen them all. The end
itself has an id, too, as ``job_events`` says. Times are those of the database's clock, so that hosts whose clocks
differ agree on every lease.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Literal

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from tirgemm.errors import InvalidRequest
from tirgemm.events import Event
from tirgemm.gemm import Gemm
from tirgemm.status import ENDED, LIVE, EndedStatus, JobStatus
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.process.spans import spanned
from tirgemm.tuning.records.json_values import plain_text
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.access.quotas import Asker, require_quota
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.job_values import Job, JobProgress, JobRequest, StoredEvent, priority_named
from tirgemm.tuning_db.models import EventRow, GemmRow, JobRow
from tirgemm.tuning_db.pages import place_of
from tirgemm.tuning_db.queue import job_events
from tirgemm.tuning_db.queue.budget_shares import LIMIT, granted
from tirgemm.tuning_db.queue.job_leases import (
    declare_dead,
    end_live,
    expired_owners,
    first_sound,
    held,
    is_of_one_process,
    put_back_unreleased,
    released,
    require_held,
)
from tirgemm.tuning_db.queue.job_rows import (
    MAX_REASON,
    MAX_RETRIES,
    QUEUE_ORDER,
    NewJob,
    add_jobs,
    find_job,
    job_of,
    kept_kernels,
    put_back,
    read_jobs,
    require_job,
    require_room,
    select_jobs,
    unknown_job,
    window_open,
)
from tirgemm.tuning_db.queue.lease_clock import LeaseClock
from tirgemm.tuning_db.queue.worker_registry import WorkerRegistry
from tirgemm.tuning_db.times import Clock, iso

LeaseState = Literal["ok", "cancelled", "lost"]
_WAITS = (JobRow.status == "queued", JobRow.owner.is_(None))
_NEWEST = select(func.max(JobRow.seq))
_LIVE = select(JobRow.seq).where(JobRow.status.in_(LIVE)).limit(1)


class JobQueue(WorkerRegistry):
    """The job, event and worker tables of a Database. ``monotonic`` gives the seconds that pass here, by default those
    of ``clock``, or of the machine."""

    def __init__(self, db: Database, clock: Clock | None = None, monotonic: Clock | None = None) -> None:
        super().__init__(db, clock)
        self._lease_clock = LeaseClock(monotonic or clock or time.monotonic)

    def _now(self, connection: Connection) -> float:
        now = super()._now(connection)
        self._lease_clock.look(now)
        return now

    # -- requests ------------------------------------------------------------------------------

    @spanned("submit")
    def submit(
        self,
        request: JobRequest,
        fallback_id: str | None = None,
        *,
        max_queued: int | None = None,
        asker: Asker | None = None,
        job_id: str | None = None,
    ) -> tuple[Job, bool]:
        """Queue a request, or find the live job that already answers it. True where a job was created.

        A job that is joined gets the higher of both priorities, and starts at any time where either is to.
        ``fallback_id`` is the kernel that answers until a new job is done: the stored one, where that is to be
        improved. ``asker`` is the API key that a new job counts against. ``job_id`` is what a new job is to be called;
        where there is one of that name, it was asked for before, and is returned as it is. Raises QueueFull where
        ``max_queued`` jobs wait already, QuotaExceeded where the key has used up what it may; a live job is joined all
        the same.
        """
        columns = {"fallback_id": fallback_id, "key_id": asker.key_id if asker is not None else None}
        new = NewJob(request, columns | ({"id": job_id} if job_id is not None else {}))
        with self.db.write() as connection:
            made = find_job(connection, new.values["id"])
            if made is not None:
                return job_of(made), False
            if fallback_id not in kept_kernels(connection, [fallback_id]):
                new.values["fallback_id"] = None
            now = self._now(connection)
            (live_id,), added = add_jobs(self.db, connection, [new], now)
            created = live_id in added
            if created:
                require_room(connection, max_queued)
            if created and asker is not None:
                require_quota(connection, asker, now)
            row = find_job(connection, live_id)
        # On PostgreSQL the live job can have ended between the two statements; then this request starts a new one. Or
        # it was sent twice at once, and the other one has made its job.
        if row is None:
            return self.submit(request, fallback_id, max_queued=max_queued, asker=asker, job_id=job_id)
        return job_of(row), created

    def cancel(self, job_id: str) -> Job:
        """End a live job as cancelled, at once; its worker learns of it at its next heartbeat. Ended jobs stay as they
        are."""
        with self.db.write() as connection:
            end_live(connection, JobRow.id == job_id, "cancelled", self._now(connection))
            return job_of(require_job(connection, job_id))

    def prioritise(self, job_id: str, priority: int) -> Job:
        """Give a queued job another place in the queue; one that is running or has ended stays as it is."""
        waits = (JobRow.id == job_id, JobRow.status == "queued")
        with self.db.write() as connection:
            connection.execute(update(JobRow).where(*waits).values(priority=priority_named(priority)))
            return job_of(require_job(connection, job_id))

    def retry(
        self,
        job_id: str,
        reason: str = "",
        *,
        limit: int = MAX_RETRIES,
        max_queued: int | None = None,
        asker: Asker | None = None,
    ) -> Job:
        """Put a failed or cancelled job back into the queue, to go on from its records; ``reason`` is kept with it.

        Its error is forgotten and its deaths count from none. A job that was put back for this ``reason`` and has not
        failed since stays as it is: whoever repeats a request has not heard that it worked. Raises JobNotRetried for
        any other job that is live or done, that was put back ``limit`` times already, or whose request another live job
        answers; QueueFull and QuotaExceeded as ``submit`` does, where ``asker`` is the key that the job counts against.
        """
        with self.db.write() as connection:
            now = self._now(connection)
            if put_back(connection, job_id, plain_text(reason)[:MAX_REASON], limit, now):
                require_room(connection, max_queued)
                if asker is not None:
                    require_quota(connection, asker, now)
            return job_of(require_job(connection, job_id))

    def job(self, job_id: str) -> Job | None:
        with self.db.read() as connection:
            row = find_job(connection, job_id)
        return None if row is None else job_of(row)

    def jobs(
        self,
        limit: int = 100,
        status: JobStatus | None = None,
        gemm: Gemm | None = None,
        device_keys: Sequence[str] | None = None,
        *,
        after: str = "",
        sizes: str = "",
    ) -> list[Job]:
        """Jobs newest first, from behind the id ``after``; only those of this status, problem, one of these devices.
        ``sizes``: of problems of any dtype and layout whose text begins with them, such as ``4096x4096x4096``. Those
        whose rows are damaged are left out, and logged.

        Raises PageNotFound where no job has the id ``after``.
        """
        wanted = select_jobs().order_by(JobRow.seq.desc())
        if status is not None:
            wanted = wanted.where(JobRow.status == status)
        if gemm is not None:
            wanted = wanted.where(JobRow.gemm_id.in_(select(GemmRow.id).where(GemmRow.text == str(gemm))))
        if sizes:
            begun = select(GemmRow.id).where(GemmRow.text.startswith(f"{sizes}:", autoescape=True))
            wanted = wanted.where(JobRow.gemm_id.in_(begun))
        if device_keys is not None:
            wanted = wanted.where(JobRow.device_key.in_(list(device_keys)))
        with self.db.read() as connection:
            if after:
                wanted = wanted.where(JobRow.seq < place_of(connection, JobRow, after))
            return read_jobs(connection, wanted, max(limit, 0))

    # -- workers' side -------------------------------------------------------------------------

    def claim(
        self,
        owner: str,
        device_keys: Sequence[str],
        lease_s: float,
        *,
        unverified: bool = False,
        limit: Budget = LIMIT,
    ) -> Job | None:
        """Take the first job that waits, or whose owner's leases have run out, for one of these devices: that of the
        highest priority, then the oldest, whose window is open. One with a share of a batch's budget gets it now,
        at most ``limit``.

        ``unverified`` also takes jobs for devices that are not here and that ask for no verification. A job whose
        fallback another worker builds at this moment is passed over: that one has begun it. One whose row is damaged
        is failed. Of the process of ``owner``, which asks, nobody is dead.
        """
        with self.db.read() as connection:
            # Of an idle service there is none: that takes a tenth of the time of what follows, and no lock.
            if connection.execute(_LIVE).first() is None:
                return None
        serves: ColumnElement[bool] = JobRow.device_key.in_(list(device_keys))
        if unverified:
            serves = or_(serves, JobRow.verify.is_(False))
        wanted = select(JobRow.id, JobRow.started_at, JobRow.batch_id).where(*_WAITS, serves).limit(1)
        with self.db.write() as connection:
            now = self._now(connection)
            wanted = wanted.where(window_open(now)).order_by(*QUEUE_ORDER)
            if self._lease_clock.tells(lease_s):
                for silent in expired_owners(connection, now):
                    if not is_of_one_process(silent, owner):
                        declare_dead(connection, silent, now)
                put_back_unreleased(connection, now, owner)
            row = first_sound(connection, wanted.with_for_update(skip_locked=True), now)
            if row is None:
                return None
            values = {
                "status": "running",
                "owner": owner,
                "lease_until": now + lease_s,
                "claimed_at": now,
                "attempts": JobRow.attempts + 1,
                "started_at": row.started_at or iso(now),
            }
            if row.batch_id is not None:
                values |= granted(connection, row.batch_id, row.id, limit)
            connection.execute(update(JobRow).where(JobRow.id == row.id).values(values))
            return job_of(require_job(connection, row.id))

    def newest(self) -> int | None:
        """The number of the newest job; None where there was none yet. To ask costs a small part of a claim and
        locks nothing."""
        with self.db.read() as connection:
            newest: int | None = connection.execute(_NEWEST).scalar()
        return newest

    def upcoming(
        self, device_keys: Sequence[str], limit: int, *, bare: bool = False, skip: Collection[str] = ()
    ) -> list[Job]:
        """The first ``limit`` queued jobs of these devices whose window is open, in the order of claims, also those
        whose fallback is being built; only those without a fallback where they are to be ``bare`` of one, and none of
        ``skip``."""
        waiting = [JobRow.status == "queued", JobRow.device_key.in_(list(device_keys)), JobRow.id.not_in(list(skip))]
        waiting += [JobRow.fallback_id.is_(None)] if bare else []
        wanted = select_jobs().where(*waiting).order_by(*QUEUE_ORDER)
        with self.db.read() as connection:
            return read_jobs(connection, wanted.where(window_open(self._now(connection))), limit)

    def claim_fallback(
        self,
        owner: str,
        device_keys: Sequence[str],
        lease_s: float,
        skip: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Job | None:
        """Take the first job of these devices that waits and has no fallback, to build that alone; none of ``skip``,
        and one of ``only`` where those are given.

        It stays queued: nobody else builds its fallback or claims it until ``release``, or the lease has run out.
        """
        pending = (*_WAITS, JobRow.fallback_id.is_(None), JobRow.device_key.in_(list(device_keys)))
        wanted = select(JobRow.id).where(*pending, JobRow.id.not_in(list(skip))).order_by(*QUEUE_ORDER).limit(1)
        if only is not None:
            wanted = wanted.where(JobRow.id.in_(list(only)))
        with self.db.write() as connection:
            now = self._now(connection)
            wanted = wanted.where(window_open(now)).with_for_update(skip_locked=True)
            row = first_sound(connection, wanted, now)
            if row is None:
                return None
            values = {"owner": owner, "lease_until": now + lease_s}
            connection.execute(update(JobRow).where(JobRow.id == row.id).values(values))
            return job_of(require_job(connection, row.id))

    def heartbeat(self, job_id: str, owner: str, lease_s: float) -> LeaseState:
        """Extend the lease. ``cancelled``: stop; ``lost``: another owner has it, or it has ended: stop and write
        nothing."""
        with self.db.write() as connection:
            values = {"lease_until": self._now(connection) + lease_s}
            extended = connection.execute(update(JobRow).where(*held(job_id, owner)).values(values))
            if extended.rowcount:
                return "ok"
            status = connection.execute(select(JobRow.status).where(JobRow.id == job_id)).scalar()
        return "cancelled" if status == "cancelled" else "lost"

    def finish(
        self, job_id: str, owner: str, status: EndedStatus, kernel_id: str | None = None, error: str | None = None
    ) -> bool:
        """End a running job that ``owner`` holds. False, and nothing written, where it was cancelled or taken over. A
        kernel that was deleted since is none.

        How its builds stood, which grew with its time, is forgotten of a job that has ended.
        """
        if status not in ENDED:
            raise InvalidRequest(f"a job ends as one of {', '.join(ENDED)}, not {status!r}")
        running = and_(*held(job_id, owner), JobRow.status == "running")
        words = None if error is None else plain_text(error)
        with self.db.write() as connection:
            kept = kernel_id if kernel_id in kept_kernels(connection, [kernel_id]) else None
            return end_live(connection, running, status, self._now(connection), error=words, kernel_id=kept)

    def release(self, job_id: str, owner: str) -> bool:
        """Put a job that ``owner`` holds back into the queue at once, in good order: that is no attempt.

        False where it was cancelled or taken over.
        """
        with self.db.write() as connection:
            values = released(self._now(connection))
            return bool(connection.execute(update(JobRow).where(*held(job_id, owner)).values(values)).rowcount)

    def owners(self) -> list[str]:
        """The workers that hold a live job."""
        wanted = select(JobRow.owner).where(JobRow.status.in_(LIVE), JobRow.owner.is_not(None)).distinct()
        with self.db.read() as connection:
            return [owner for owner in connection.execute(wanted).scalars() if owner]

    def declare_dead(self, owner: str) -> list[str]:
        """Put the jobs of a worker that died back at once; returns their ids. See ``job_leases.declare_dead``."""
        with self.db.write() as connection:
            return declare_dead(connection, owner, self._now(connection))

    def set_fallback(self, job_id: str, kernel_id: str) -> None:
        """Name the kernel that answers until the search is done, whatever state the job is in; none where it was
        deleted since."""
        with self.db.write() as connection:
            kept = kernel_id if kernel_id in kept_kernels(connection, [kernel_id]) else None
            updated = connection.execute(update(JobRow).where(JobRow.id == job_id).values(fallback_id=kept))
            if not updated.rowcount:
                raise unknown_job(job_id)

    # -- events --------------------------------------------------------------------------------

    def add_event(self, job_id: str, event: Event, owner: str | None = None) -> int:
        """Append an event, whose id is returned; StoreError for a job that is not there, LeaseLost where ``owner``
        holds it no more. How the builds of a job stand that has ended is not kept, and has the id 0."""
        with self.db.write() as connection:
            if owner is not None:
                require_held(connection, job_id, owner)
            return job_events.add_event(connection, job_id, event, self._now(connection))

    def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        """The events of a job behind the id ``after``, oldest first, without its ends."""
        with self.db.read() as connection:
            return job_events.events_behind(connection, job_id, after, limit)

    def progress(self, job_ids: Sequence[str]) -> dict[str, JobProgress]:
        """How far each of these jobs is, all of one moment; those that are not there are left out."""
        newest = select(func.max(EventRow.id)).where(EventRow.job_id == JobRow.id).scalar_subquery()
        columns = (JobRow.id, JobRow.status, JobRow.fallback_id, JobRow.kernel_id, newest.label("newest_event"))
        with self.db.read() as connection:
            return {
                row.id: JobProgress(row.status, row.fallback_id, row.kernel_id, row.newest_event or 0)
                for row in rows.among(connection, select(*columns), JobRow.id, job_ids)
            }
