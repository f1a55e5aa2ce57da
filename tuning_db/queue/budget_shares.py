"""Division of a batch's budget among its jobs: by expected gain, anew whenever one of them starts.

What has ended counts by what it spent, so that the rest of a search that ended early goes to those that start later;
what runs counts by what it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, select

from tirgemm.status import Status
from tirgemm.tuning.budget import MAX_SECONDS, MAX_TRIALS, Budget
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.models import BatchRow, CandidateRow, JobRow

# Of a gain that is not expected at all something may still be had.
LEAST_WEIGHT = 0.01
LEAST_SECONDS = 1.0
_TRIED = CandidateRow.status != str(Status.PRUNED)
# What one search may be given where nobody sets a limit.
LIMIT = Budget(MAX_TRIALS, MAX_SECONDS)
# The trials of a job's problem from before it was asked for, and since.
_BEFORE = func.coalesce(JobRow.recorded_before, 0)
_SAME = (getattr(CandidateRow, name) == getattr(JobRow, name) for name in ("gemm_id", "device_key", "regime"))
_SINCE = select(func.count(CandidateRow.id)).where(*_SAME, _TRIED).scalar_subquery() - _BEFORE


@dataclass(frozen=True, slots=True)
class Spending:
    """The jobs of a batch: what of its budget they have ``spent``, and what is ``reserved`` for those that run, in
    trials and seconds."""

    trials: int = 0
    seconds: float = 0.0
    reserved_trials: int = 0
    reserved_seconds: float = 0.0


def shares(total: float, weights: Sequence[float], least: float = 0.0) -> list[float]:
    """``total`` in parts: ``least`` for each, the rest by their weights."""
    floored = [max(weight, LEAST_WEIGHT) for weight in weights]
    rest = max(0.0, total - least * len(weights))
    return [least + rest * weight / sum(floored) for weight in floored]


def granted(connection: Connection, batch_id: str, job_id: str, limit: Budget = LIMIT) -> dict[str, Any]:
    """The columns of a job that starts now with its share of its batch's budget; none where the batch has no budget.

    The trials are on top of those that are recorded for its problem. No share is larger than ``limit``: what others
    leave must not make one search longer than any may be.
    """
    batch = connection.execute(
        select(BatchRow.trials, BatchRow.seconds).where(BatchRow.id == batch_id).with_for_update()
    ).first()
    if batch is None or (batch.trials is None and batch.seconds is None):
        return {}
    # To count a job's candidates takes time, and the queue waits meanwhile: each job's are counted once.
    spent = spendings(connection, [batch_id], JobRow.status != "queued").get(batch_id, Spending())
    own = (JobRow.id, JobRow.expected_gain, JobRow.spent_seconds, _BEFORE.label("before"), _SINCE.label("since"))
    queued = (JobRow.batch_id == batch_id, JobRow.status == "queued")
    waiting = connection.execute(select(*own).where(*queued).order_by(JobRow.seq)).all()
    weights = [job.expected_gain or 0.0 for job in waiting]
    place = next(number for number, job in enumerate(waiting) if job.id == job_id)
    columns: dict[str, Any] = {}
    if batch.trials is not None:
        left = batch.trials - spent.trials - spent.reserved_trials - sum(job.since for job in waiting)
        share = min(int(shares(left, weights, 1.0)[place]), limit.trials)
        columns["granted_trials"] = min(waiting[place].before + waiting[place].since + share, MAX_TRIALS)
    if batch.seconds is not None:
        left_s = batch.seconds - spent.seconds - spent.reserved_seconds - sum(job.spent_seconds for job in waiting)
        columns["granted_seconds"] = min(shares(left_s, weights, LEAST_SECONDS)[place], limit.seconds)
    return columns


def spendings(
    connection: Connection, batch_ids: Sequence[str], condition: ColumnElement[bool] | None = None
) -> dict[str, Spending]:
    """What the jobs of each of these batches, those of ``condition``, have spent so far; batches without one of their
    own are left out."""
    runs = JobRow.status == "running"
    granted_since = func.coalesce(JobRow.granted_trials, 0) - _BEFORE
    reserved = case((granted_since > _SINCE, granted_since), else_=_SINCE)
    columns: tuple[Any, ...] = (
        JobRow.batch_id,
        func.sum(case((runs, 0), else_=_SINCE)),
        func.sum(JobRow.spent_seconds),
        func.sum(case((runs, reserved), else_=0)),
        func.sum(case((runs, func.coalesce(JobRow.granted_seconds, 0.0)), else_=0.0)),
    )
    summed = select(*columns).group_by(JobRow.batch_id)
    if condition is not None:
        summed = summed.where(condition)
    return {
        batch_id: Spending(int(trials), float(seconds), int(reserved_trials), float(reserved_s))
        for batch_id, trials, seconds, reserved_trials, reserved_s in rows.among(
            connection, summed, JobRow.batch_id, batch_ids
        )
    }


def trials_by_problem(connection: Connection, gemm_ids: Collection[int]) -> Counter[tuple[int, str, str]]:
    """How many candidates were tried of these problems, by problem, device class and regime."""
    problem = (CandidateRow.gemm_id, CandidateRow.device_key, CandidateRow.regime)
    counted = select(*problem, func.count(CandidateRow.id).label("tried")).where(_TRIED).group_by(*problem)
    return Counter(
        {
            (row.gemm_id, row.device_key, row.regime): row.tried
            for row in rows.among(connection, counted, CandidateRow.gemm_id, sorted(gemm_ids))
        }
    )
