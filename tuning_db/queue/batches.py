"""``BatchTable``: problems that were asked for together, with one progress, one budget and one cancellation.

Equal problems are one item. An item is a job, new or joined, or the kernel that was there; the jobs that a batch made
are its own: they share its budget and are cancelled with it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.gemm import Gemm
from tirgemm.tuning.process.spans import spanned
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.access.quotas import Asker, require_batch_quota, require_quota
from tirgemm.tuning_db.database import ClockedTables
from tirgemm.tuning_db.job_values import JobRequest
from tirgemm.tuning_db.models import BatchItemRow, BatchRow, GemmRow, JobRow, KernelFigureRow, KernelRow
from tirgemm.tuning_db.pages import place_of
from tirgemm.tuning_db.queue.batch_totals import BatchBudget, BatchStates, BatchTotals, ItemState, states_of, totals_of
from tirgemm.tuning_db.queue.budget_shares import trials_by_problem
from tirgemm.tuning_db.queue.job_leases import end_live
from tirgemm.tuning_db.queue.job_rows import NewJob, add_jobs, kept_kernels, require_room
from tirgemm.tuning_db.times import iso

MAX_ITEMS = 1000
_TRIES = 3
# Any number but that of the migrations, as long as every tirgemm takes the same one.
_MANY_JOBS_LOCK = 7_415_014


@dataclass(frozen=True, slots=True)
class WantedProblem:
    """A problem of a batch to be: what a job for it is asked, or the kernel that answers it. ``fallback_id`` is the
    kernel that is to be improved; ``times``: how often the problem was asked for."""

    request: JobRequest
    expected_gain: float = 0.0
    kernel_id: str | None = None
    fallback_id: str | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A problem of a batch and how far it is. ``gain`` is the speed of its tuned kernel over the default's, 1 for none;
    None where nobody knows. ``times``: how often it was asked for."""

    gemm: Gemm
    state: ItemState
    expected_gain: float
    job_id: str | None
    kernel_id: str | None
    gain: float | None
    times: int


@dataclass(frozen=True, slots=True)
class Batch(BatchTotals):
    """A batch with its items by falling expected gain."""

    items: tuple[BatchItem, ...]


class BatchTable(ClockedTables):
    """The batches of a Database."""

    @spanned("submit")
    def submit(
        self,
        wanted: Sequence[WantedProblem],
        *,
        asked: int,
        budget: BatchBudget | None = None,
        max_queued: int | None = None,
        asker: Asker | None = None,
        batch_id: str | None = None,
    ) -> Batch:
        """Queue a job for every one of ``wanted`` that has no kernel, or join the live one, all or none.

        ``batch_id``: what the batch is to be called; where there is one of that name, it was asked for before, and is
        returned as it is. A kernel that was deleted since it was found is none. Raises InvalidRequest, QueueFull and
        QuotaExceeded.
        """
        if not 1 <= len(wanted) <= MAX_ITEMS:
            raise InvalidRequest(f"a batch of {len(wanted)} problems; it must have 1 to {MAX_ITEMS}")
        spend = budget or BatchBudget()
        key_id = asker.key_id if asker is not None else None
        name = batch_id or secrets.token_hex(8)
        # The oldest of equal priority is first in the queue: their order is that of the expected gain.
        ordered = sorted(wanted, key=lambda one: -one.expected_gain)
        new = {number: _new_job(one, key_id, name) for number, one in enumerate(ordered) if one.kernel_id is None}
        with self.db.write() as connection:
            self._wait_for_others(connection)
            made = connection.execute(_select().where(BatchRow.id == name)).first()
            if made is not None:
                return _batch(connection, made)
            named = [kernel_id for one in ordered for kernel_id in (one.kernel_id, one.fallback_id)]
            kept = kept_kernels(connection, named)
            now = self._now(connection)
            values = {
                "id": name,
                "key_id": key_id,
                "trials": spend.trials,
                "seconds": spend.seconds,
                "asked": asked,
                "created_at": iso(now),
            }
            connection.execute(insert(BatchRow).values(values))
            gemms = rows.gemm_ids(self.db, connection, {one.request.gemm for one in ordered})
            items = [
                {
                    "batch_id": name,
                    "number": number,
                    "gemm_id": gemms[one.request.gemm],
                    "device_key": one.request.device.key,
                    "regime": one.request.regime,
                    "expected_gain": one.expected_gain,
                    "times": one.times,
                    "job_id": None,
                    "kernel_id": one.kernel_id if one.kernel_id in kept else None,
                }
                for number, one in enumerate(ordered)
            ]
            recorded = trials_by_problem(connection, set(gemms.values()))
            for number, job in new.items():
                request, fallback_id = ordered[number].request, ordered[number].fallback_id
                job.values["fallback_id"] = fallback_id if fallback_id in kept else None
                job.values["recorded_before"] = recorded[gemms[request.gemm], request.device.key, request.regime]
            jobs, added = self._jobs(connection, new, now)
            for number, job_id in jobs.items():
                items[number]["job_id"] = job_id
            connection.execute(insert(BatchItemRow), items)
            if added:
                require_room(connection, max_queued, added)
            if asker is not None:
                require_batch_quota(connection, asker, now)
                if added:
                    require_quota(connection, asker, now, added)
        with self.db.read() as connection:
            return _batch(connection, _require(connection, name))

    def _wait_for_others(self, connection: Connection) -> None:
        """Let transactions that change many jobs follow one another on PostgreSQL, too: two that lock the same ones in
        different orders would end in a deadlock."""
        if not self.db.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(_MANY_JOBS_LOCK)))

    def _jobs(self, connection: Connection, new: Mapping[int, NewJob], now: float) -> tuple[dict[int, str], int]:
        """The jobs of the numbered problems, and how many of them were added."""
        jobs: dict[int, str] = {}
        count = 0
        # On PostgreSQL a live job can have ended between the two statements; then a new one is queued.
        for _ in range(_TRIES):
            missing = {number: job for number, job in new.items() if number not in jobs}
            if not missing:
                return jobs, count
            ids, added = add_jobs(self.db, connection, list(missing.values()), now)
            jobs |= {number: job_id for number, job_id in zip(missing, ids, strict=True) if job_id}
            count += len(added)
        raise StoreError(f"jobs ended {_TRIES} times while they were joined; ask again")

    def batch(self, batch_id: str) -> Batch | None:
        with self.db.read() as connection:
            row = connection.execute(_select().where(BatchRow.id == batch_id)).first()
            return None if row is None else _batch(connection, row)

    def batches(self, limit: int = 100, *, after: str = "") -> list[BatchTotals]:
        """Batches newest first, from behind the id ``after``, without their items. Raises PageNotFound where no batch
        has that id."""
        wanted = _select().order_by(BatchRow.seq.desc()).limit(max(limit, 0))
        with self.db.read() as connection:
            if after:
                wanted = wanted.where(BatchRow.seq < place_of(connection, BatchRow, after))
            return totals_of(connection, connection.execute(wanted).all())

    def totals(self, batch_ids: Sequence[str]) -> dict[str, BatchTotals]:
        """These batches without their items; those that are not there are left out."""
        with self.db.read() as connection:
            batch_rows = connection.execute(_select().where(BatchRow.id.in_(batch_ids))).all()
            return {totals.id: totals for totals in totals_of(connection, batch_rows)}

    def cancel(self, batch_id: str) -> Batch:
        """End every live job that the batch made, those that were put back since too; those that it joined go on. A
        batch that is done stays as it is."""
        with self.db.write() as connection:
            self._wait_for_others(connection)
            batch = _batch(connection, _require(connection, batch_id))
            if batch.status == "done":
                return batch
            now = self._now(connection)
            # Jobs before the batch, as a worker that claims one locks them.
            end_live(connection, JobRow.batch_id == batch_id, "cancelled", now)
            first = (BatchRow.id == batch_id, BatchRow.cancelled_at.is_(None))
            connection.execute(update(BatchRow).where(*first).values(cancelled_at=iso(now)))
            return _batch(connection, _require(connection, batch_id))

    def states(self, batch_ids: Sequence[str]) -> dict[str, BatchStates]:
        """How far each of these batches is; those that are not there are left out."""
        with self.db.read() as connection:
            return states_of(connection, batch_ids)


def _new_job(one: WantedProblem, key_id: str | None, batch_id: str) -> NewJob:
    return NewJob(one.request, {"key_id": key_id, "batch_id": batch_id, "expected_gain": one.expected_gain})


def _select() -> Select[Any]:
    return select(*BatchRow.__table__.columns)


def _require(connection: Connection, batch_id: str) -> Row[Any]:
    row: Row[Any] | None = connection.execute(_select().where(BatchRow.id == batch_id)).first()
    if row is None:
        raise StoreError(f"no batch has the id {batch_id!r:.80}")
    return row


def _batch(connection: Connection, row: Row[Any]) -> Batch:
    item, figures = BatchItemRow, KernelFigureRow
    kernel_id = func.coalesce(JobRow.kernel_id, item.kernel_id)
    columns: tuple[Any, ...] = (
        GemmRow.text,
        item.expected_gain,
        item.times,
        item.job_id,
        JobRow.status,
        kernel_id.label("kernel"),
        figures.role,
        figures.default_ratio,
    )
    wanted = (
        select(*columns)
        .join(GemmRow, GemmRow.id == item.gemm_id)
        .outerjoin(JobRow, JobRow.id == item.job_id)
        .outerjoin(KernelRow, KernelRow.id == kernel_id)
        .outerjoin(figures, figures.seq == KernelRow.seq)
        .where(item.batch_id == row.id)
        .order_by(item.number)
    )
    items = tuple(_item(one) for one in connection.execute(wanted))
    (totals,) = totals_of(connection, [row])
    values = {each.name: getattr(totals, each.name) for each in fields(totals)}
    # The states in the order of the items.
    return Batch(**values | {"states": dict(Counter(item.state for item in items))}, items=items)


def _item(row: Row[Any]) -> BatchItem:
    gain = row.default_ratio if row.role == "tuned" else None
    state: ItemState = row.status or ("deleted" if row.kernel is None else "hit")
    return BatchItem(rows.parsed_gemm(row.text), state, row.expected_gain, row.job_id, row.kernel, gain, row.times)
