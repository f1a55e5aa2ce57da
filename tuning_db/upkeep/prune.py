"""Retention: old kernels that are neither served, nor among the best, nor pinned or locked, old audit entries, batches
and events of jobs that have ended."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select, update

from tirgemm.errors import DamagedRow, InvalidRequest, KernelPinned
from tirgemm.status import ENDED, LIVE
from tirgemm.timings import Timings
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.access.quotas import DAY_SECONDS
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import AuditRow, BatchItemRow, BatchRow, EventRow, JobRow, KernelRow
from tirgemm.tuning_db.store import SqlStore
from tirgemm.tuning_db.times import iso
from tirgemm.tuning_db.upkeep.admin import COLLECT_AFTER_S, CollectedGarbage, collect_garbage

# A batch has up to 1,000 items, which go with it, a job some events for each of its trials.
BATCHES_AT_ONCE, JOBS_AT_ONCE = 10, 20
_COLUMNS = (
    KernelRow.id,
    KernelRow.seq,
    KernelRow.gemm_id,
    KernelRow.device_key,
    KernelRow.regime,
    KernelRow.role,
    KernelRow.other_device,
    KernelRow.artifact_sha256,
    KernelRow.timings,
    KernelRow.stored_at,
    KernelRow.pinned_at,
)


@dataclass(frozen=True)
class Pruned:
    """What pruning deleted, or would have: kernels by their ids, whose artifacts go with them, entries of the audit
    log, batches with their items, events of jobs, and what was ``collected``: blobs that had no kernel before.
    ``damaged`` says of each kernel whose row is damaged that it was left out, and why."""

    kernels: tuple[str, ...]
    audit_entries: int
    batches: int
    events: int
    collected: CollectedGarbage
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Timed:
    """The row of a kernel, and its median in microseconds a call; infinite where it was not timed."""

    row: Row[Any]
    us: float


def prune(
    db: Database,
    *,
    older_than_s: float,
    keep_best: int = 1,
    locked: Collection[str] = (),
    dry_run: bool = False,
) -> Pruned:
    """Delete kernels, audit entries, batches that have ended, and what ended jobs did, all older than that, then blobs
    that nothing names.

    Of each problem, device class and regime there stay the kernel that is served, the ``keep_best`` fastest tuned ones,
    and the newest unverified build; and everywhere what is pinned, what live jobs name, and the artifacts of the
    hashes ``locked``. Batches of API keys stay for a day, in which they count against quotas. Jobs with their ends
    stay, what was measured, and a kernel whose row is damaged. Raises InvalidRequest.
    """
    if not (older_than_s >= 0 and math.isfinite(older_than_s)):
        raise InvalidRequest(f"the age from which is pruned is {older_than_s} s; it must be 0 or more")
    if keep_best < 0:
        raise InvalidRequest(f"the number of best kernels that are kept is {keep_best}; it must be 0 or more")
    damaged: list[str] = []
    with db.read() as connection:
        now = db.now(connection)
        before = iso(max(now - older_than_s, 0.0))
        old = AuditRow.at < before
        entries = int(connection.execute(select(func.count()).select_from(AuditRow).where(old)).scalar_one())
        prunable = _prunable(_kernels(connection, damaged.append), _of_live_jobs(connection), before, keep_best)
        kernels = [kernel.row.id for kernel in prunable if kernel.row.artifact_sha256 not in locked]
        batches = _ended_batches(connection, before, iso(now - DAY_SECONDS))
        told = _events_of_ended_jobs(connection, before)
        jobs, events = list(told), sum(told.values())
    if not dry_run:
        kernels = _deleted(SqlStore(db), kernels)
        with db.write() as connection:
            connection.execute(delete(AuditRow).where(old))
        for part in rows.parts(batches, BATCHES_AT_ONCE):
            with db.write() as connection:
                connection.execute(update(JobRow).where(JobRow.batch_id.in_(part)).values(batch_id=None))
                connection.execute(delete(BatchRow).where(BatchRow.id.in_(part)))
        events = sum(_delete_events(db, part, before) for part in rows.parts(jobs, JOBS_AT_ONCE))
    collected = collect_garbage(db, older_than_s=COLLECT_AFTER_S, locked=locked, dry_run=dry_run)
    return Pruned(tuple(kernels), entries, len(batches), events, collected, tuple(damaged))


def _events_of_ended_jobs(connection: Connection, before: str) -> dict[str, int]:
    """How many events jobs have that ended before then, by their ids; their ends are none of them."""
    over = (JobRow.status.in_(ENDED), JobRow.finished_at < before, EventRow.kind.not_in(ENDED))
    counted = select(EventRow.job_id, func.count()).join(JobRow, JobRow.id == EventRow.job_id).where(*over)
    return {job_id: int(count) for job_id, count in connection.execute(counted.group_by(EventRow.job_id))}


def _delete_events(db: Database, job_ids: Sequence[str], before: str) -> int:
    """Delete what these jobs did, but for those that have been put back into the queue since; how many events went."""
    ended = select(JobRow.id).where(JobRow.id.in_(job_ids), JobRow.status.in_(ENDED), JobRow.finished_at < before)
    with db.write() as connection:
        # Locked until their events are gone: on PostgreSQL one could be put back meanwhile.
        ended_ids = connection.execute(ended.with_for_update()).scalars().all()
        gone = connection.execute(delete(EventRow).where(EventRow.job_id.in_(ended_ids), EventRow.kind.not_in(ENDED)))
    return gone.rowcount


def _ended_batches(connection: Connection, before: str, of_keys_before: str) -> list[str]:
    """Batches older than ``before`` of which no job is live; those of API keys, which count against their quotas, older
    than ``of_keys_before``, too."""
    item = BatchItemRow
    joined = select(item.batch_id).join(JobRow, JobRow.id == item.job_id).where(JobRow.status.in_(LIVE))
    own = select(JobRow.batch_id).where(JobRow.status.in_(LIVE), JobRow.batch_id.is_not(None))
    uncounted = or_(BatchRow.key_id.is_(None), BatchRow.created_at <= of_keys_before)
    over = (BatchRow.created_at < before, BatchRow.id.not_in(joined.union(own)), uncounted)
    return list(connection.execute(select(BatchRow.id).where(*over).order_by(BatchRow.seq)).scalars())


def _deleted(store: SqlStore, kernel_ids: Sequence[str]) -> list[str]:
    """Delete kernels, but for those that somebody pins at this moment."""
    gone = []
    for kernel_id in kernel_ids:
        try:
            if store.delete_kernel(kernel_id):
                gone.append(kernel_id)
        except KernelPinned:
            continue
    return gone


def _kernels(connection: Connection, tell: rows.Tell) -> list[_Timed]:
    """All kernels, the oldest first, but for those whose rows are damaged, of which ``tell`` is told."""

    def read(ids: Sequence[str]) -> list[_Timed]:
        return [
            _Timed(row, _median_us(row))
            for row in rows.fetch(connection, select(*_COLUMNS).where(KernelRow.id.in_(ids)))
        ]

    ids = connection.execute(select(KernelRow.id)).scalars().all()
    kernels = [kernel for part in rows.parts(ids) for kernel in rows.sound(read, part, "kernel", tell)]
    return sorted(kernels, key=lambda kernel: (kernel.row.stored_at, kernel.row.seq))


def _of_live_jobs(connection: Connection) -> frozenset[str]:
    """The kernels that live jobs name."""
    named = or_(JobRow.fallback_id == KernelRow.id, JobRow.kernel_id == KernelRow.id)
    wanted = select(KernelRow.id).join(JobRow, named).where(JobRow.status.in_(LIVE))
    return frozenset(connection.execute(wanted).scalars())


def _prunable(kernels: Sequence[_Timed], kept: frozenset[str], before: str, keep_best: int) -> list[_Timed]:
    """Those of these kernels, oldest first, that are older than ``before`` and need not stay."""
    groups: dict[tuple[Any, ...], list[_Timed]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.row.gemm_id, kernel.row.device_key, kernel.row.regime].append(kernel)
    for group in groups.values():
        kept |= _kept(group, keep_best)
    return [
        kernel
        for group in groups.values()
        for kernel in group
        if kernel.row.id not in kept and kernel.row.stored_at < before
    ]


def _kept(group: Sequence[_Timed], keep_best: int) -> set[str]:
    """Of the kernels of one problem, device class and regime, oldest first, the ids of those that stay at any age."""
    kept = {kernel.row.id for kernel in group if kernel.row.pinned_at is not None}
    # What answers those who ask for kernels of other devices' configs, and what answers all others.
    for answers in (group, [kernel for kernel in group if kernel.row.other_device is None]):
        newest = {kernel.row.role: kernel.row.id for kernel in answers}
        roles = ("unverified", "tuned" if "tuned" in newest else "fallback")
        kept |= {newest[role] for role in roles if role in newest}
    tuned = sorted((kernel for kernel in group if kernel.row.role == "tuned"), key=lambda kernel: kernel.us)
    return kept | {kernel.row.id for kernel in tuned[:keep_best]}


def _median_us(row: Row[Any]) -> float:
    try:
        timing = Timings.from_json(row.timings).of(row.regime)
    except rows.DAMAGE as error:
        raise DamagedRow(f"its timings are damaged ({error}); delete it (tirgemm kernels delete {row.id})") from error
    return timing.median_us if timing is not None else math.inf
