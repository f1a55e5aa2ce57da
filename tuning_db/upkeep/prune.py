"""Retention: old kernels that are neither served, nor among the best, nor pinned or locked, and old audit entries."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select, update

from tirgemm.errors import InvalidRequest, KernelPinned
from tirgemm.status import LIVE
from tirgemm.timings import Timings
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import AuditRow, BatchItemRow, BatchRow, JobRow, KernelRow
from tirgemm.tuning_db.store import SqlStore
from tirgemm.tuning_db.times import iso
from tirgemm.tuning_db.upkeep.admin import COLLECT_AFTER_S, Collected, collect

# A batch has up to 1,000 items, which go with it.
BATCHES_AT_ONCE = 10
_COLUMNS = (
    KernelRow.id,
    KernelRow.seq,
    KernelRow.gemm_id,
    KernelRow.device_key,
    KernelRow.regime,
    KernelRow.role,
    KernelRow.artifact_sha256,
    KernelRow.timings,
    KernelRow.stored_at,
    KernelRow.pinned_at,
)


@dataclass(frozen=True)
class Pruned:
    """What pruning deleted, or would have: kernels by their ids, whose artifacts go with them, entries of the audit
    log, batches with their items, and what was ``collected``: blobs that had no kernel before."""

    kernels: tuple[str, ...]
    audit_entries: int
    batches: int
    collected: Collected


def prune(
    db: Database,
    *,
    older_than_s: float,
    keep_best: int = 1,
    locked: Collection[str] = (),
    dry_run: bool = False,
) -> Pruned:
    """Delete kernels, audit entries and batches that have ended older than that, then blobs that nothing names.

    Of each problem, device class and regime there stay the kernel that is served, the ``keep_best`` fastest tuned ones,
    and the newest unverified build; and everywhere what is pinned, what live jobs name, and the artifacts of the
    hashes ``locked``. What was measured stays. Raises InvalidRequest.
    """
    if not (older_than_s >= 0 and math.isfinite(older_than_s)):
        raise InvalidRequest(f"the age from which is pruned is {older_than_s} s; it must be 0 or more")
    if keep_best < 0:
        raise InvalidRequest(f"the number of best kernels that are kept is {keep_best}; it must be 0 or more")
    with db.read() as connection:
        before = iso(max(db.now(connection) - older_than_s, 0.0))
        old = AuditRow.at < before
        entries = int(connection.execute(select(func.count()).select_from(AuditRow).where(old)).scalar_one())
        kernels = _prunable(connection, before, keep_best, frozenset(locked))
        batches = _ended_batches(connection, before)
    if not dry_run:
        kernels = _deleted(SqlStore(db), kernels)
        with db.write() as connection:
            connection.execute(delete(AuditRow).where(old))
        for part in rows.parts(batches, BATCHES_AT_ONCE):
            with db.write() as connection:
                connection.execute(update(JobRow).where(JobRow.batch_id.in_(part)).values(batch_id=None))
                connection.execute(delete(BatchRow).where(BatchRow.id.in_(part)))
    collected = collect(db, older_than_s=COLLECT_AFTER_S, locked=locked, dry_run=dry_run)
    return Pruned(tuple(kernels), entries, len(batches), collected)


def _ended_batches(connection: Connection, before: str) -> list[str]:
    """Batches older than ``before`` of which no job is live."""
    item = BatchItemRow
    joined = select(item.batch_id).join(JobRow, JobRow.id == item.job_id).where(JobRow.status.in_(LIVE))
    own = select(JobRow.batch_id).where(JobRow.status.in_(LIVE), JobRow.batch_id.is_not(None))
    over = (BatchRow.created_at < before, BatchRow.id.not_in(joined.union(own)))
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


def _prunable(connection: Connection, before: str, keep_best: int, locked: frozenset[str]) -> list[str]:
    """The kernels that may go, the oldest first."""
    groups: dict[tuple[Any, ...], list[Row[Any]]] = defaultdict(list)
    for row in connection.execute(select(*_COLUMNS).order_by(KernelRow.stored_at, KernelRow.seq)):
        groups[row.gemm_id, row.device_key, row.regime].append(row)
    named = or_(JobRow.fallback_id == KernelRow.id, JobRow.kernel_id == KernelRow.id)
    wanted = select(KernelRow.id).join(JobRow, named).where(JobRow.status.in_(LIVE))
    kept = set(connection.execute(wanted).scalars())
    for group in groups.values():
        kept |= _kept(group, keep_best)
    return [
        row.id
        for group in groups.values()
        for row in group
        if row.id not in kept and row.stored_at < before and row.artifact_sha256 not in locked
    ]


def _kept(group: Sequence[Row[Any]], keep_best: int) -> set[str]:
    """Of the kernels of one problem, device class and regime, oldest first, the ids of those that stay at any age."""
    newest: dict[str, str] = {row.role: row.id for row in group}
    kept = {row.id for row in group if row.pinned_at is not None}
    kept |= {newest[role] for role in ("unverified", "tuned" if "tuned" in newest else "fallback") if role in newest}
    tuned = sorted((row for row in group if row.role == "tuned"), key=_median_us)
    return kept | {row.id for row in tuned[:keep_best]}


def _median_us(row: Row[Any]) -> float:
    timing = Timings.from_json(row.timings).of(row.regime)
    return timing.median_us if timing is not None else math.inf
