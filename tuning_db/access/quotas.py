"""Quotas of an API key on jobs, trials and storage, held within the transaction that adds a job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, or_, select

from tirgemm.errors import QuotaExceeded
from tirgemm.status import LIVE
from tirgemm.tuning_db.models import ApiKeyRow, ArtifactRow, BatchRow, JobRow, KernelRow
from tirgemm.tuning_db.times import iso

DAY_SECONDS = 86400
LIVE_RETRY_SECONDS = 10
BYTES_RETRY_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Asker:
    """The API key that asks for a job, and what it may have in all."""

    key_id: str
    live_jobs: int
    trials_a_day: int
    bytes_stored: int
    batch_problems_a_day: int


def require_batch_quota(connection: Connection, asker: Asker, now: float) -> None:
    """Raise QuotaExceeded where the batches of ``asker``, with the one just added, name more problems than they may
    within a day: known kernels are kept as items, too."""
    _lock(connection, asker)
    batches = (BatchRow.key_id == asker.key_id, BatchRow.created_at > iso(now - DAY_SECONDS))
    named = select(func.sum(BatchRow.asked), func.min(BatchRow.created_at)).where(*batches)
    problems, first = connection.execute(named).one()
    if problems > asker.batch_problems_a_day:
        words = f"batch_problems_a_day: with this batch those of this key name {problems} problems within a day"
        raise QuotaExceeded(f"{words} and may name {asker.batch_problems_a_day}", _day_after(first, now))


def require_quota(connection: Connection, asker: Asker, now: float, added: int = 1) -> None:
    """Raise QuotaExceeded where ``asker``, with the ``added`` jobs, has more than it may at ``now``."""
    _lock(connection, asker)
    mine = JobRow.key_id == asker.key_id
    live = connection.execute(
        select(func.count()).select_from(JobRow).where(mine, JobRow.status.in_(LIVE))
    ).scalar_one()
    if live > asker.live_jobs:
        words = f"live_jobs: this key has {live - added} queued or running jobs and may have {asker.live_jobs}"
        raise QuotaExceeded(f"{words}; ask again when one has ended", LIVE_RETRY_SECONDS)
    today = (mine, JobRow.asked_at > iso(now - DAY_SECONDS))
    trials, first = connection.execute(select(func.sum(JobRow.trials), func.min(JobRow.asked_at)).where(*today)).one()
    if trials > asker.trials_a_day:
        asked = "this job" if added == 1 else f"these {added} jobs"
        words = f"trials_a_day: with {asked} this key has asked for {trials} trials within a day"
        raise QuotaExceeded(f"{words} and may ask for {asker.trials_a_day}", _day_after(first, now))
    # A fallback from before the job is somebody else's.
    made = or_(JobRow.kernel_id == KernelRow.id, JobRow.fallback_id == KernelRow.id)
    kernels = select(KernelRow.artifact_sha256).join(JobRow, made).where(mine, KernelRow.stored_at >= JobRow.created_at)
    stored = select(func.coalesce(func.sum(ArtifactRow.nbytes), 0)).where(ArtifactRow.sha256.in_(kernels))
    nbytes = int(connection.execute(stored).scalar_one())
    if nbytes >= asker.bytes_stored:
        words = f"bytes_stored: the kernels of this key's jobs have {nbytes} bytes of {asker.bytes_stored}"
        raise QuotaExceeded(f"{words}; delete kernels, or ask for a larger quota", BYTES_RETRY_SECONDS)


def _lock(connection: Connection, asker: Asker) -> None:
    """Let two requests of one key wait for each other on PostgreSQL, too; on SQLite there is one writer."""
    connection.execute(select(ApiKeyRow.id).where(ApiKeyRow.id == asker.key_id).with_for_update())


def _day_after(first: str, now: float) -> int:
    """The seconds until ``first``, an ISO 8601 time, is a day ago."""
    return max(1, math.ceil(datetime.fromisoformat(first).timestamp() + DAY_SECONDS - now))
