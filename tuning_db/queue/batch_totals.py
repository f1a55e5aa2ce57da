"""``BatchTotals``: batches in figures, summed by the database, so that nobody reads their items to list them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, literal_column, select

from tirgemm.status import LIVE, BatchStatus, JobStatus
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.models import BatchItemRow, BatchRow, JobRow, KernelFigureRow, KernelRow
from tirgemm.tuning_db.queue.budget_shares import Spending, spendings

# What an item can be: answered at once, a job's status, or neither job nor kernel is there any more.
ItemState = Literal["hit", JobStatus, "deleted"]
# The state of an item that is joined with its job. Grouping by it takes literals: PostgreSQL compares no parameters.
_HIT: ColumnElement[str] = literal_column("'hit'")
_DELETED: ColumnElement[str] = literal_column("'deleted'")
_STATE: ColumnElement[Any] = func.coalesce(
    JobRow.status, case((BatchItemRow.kernel_id.is_(None), _DELETED), else_=_HIT)
)


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """What the searches of a batch may spend together; None is no bound but each job's own."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """A batch without its items; times are ISO 8601 in UTC. ``asked`` counts equal problems too, ``states`` the items
    in each state. ``gain`` is the geometric mean of the gains of ``kernels`` tuned kernels, None before the first."""

    id: str
    key_id: str | None
    asked: int
    budget: BatchBudget
    spent: Spending
    created_at: str
    cancelled_at: str | None
    states: Mapping[ItemState, int]
    kernels: int
    gain: float | None

    @property
    def status(self) -> BatchStatus:
        """``done`` once no item is queued or running, whatever became of them."""
        if self.cancelled_at is not None:
            return "cancelled"
        if not any(self.states.get(live) for live in LIVE):
            return "done"
        return "queued" if self.states.keys() <= {"queued", "hit"} else "running"


@dataclass(frozen=True, slots=True)
class BatchStates:
    """What a reader compares to see whether a batch changed."""

    states: Mapping[ItemState, int]
    cancelled: bool

    @classmethod
    def of(cls, batch: BatchTotals) -> BatchStates:
        return cls(batch.states, batch.cancelled_at is not None)


def states_of(connection: Connection, batch_ids: Sequence[str]) -> dict[str, BatchStates]:
    """How far each of these batches is; those that are not there are left out."""
    item = BatchItemRow
    counted = (
        select(item.batch_id, BatchRow.cancelled_at, _STATE, func.count(item.number))
        .join(BatchRow, BatchRow.id == item.batch_id)
        .outerjoin(JobRow, JobRow.id == item.job_id)
        .group_by(item.batch_id, BatchRow.cancelled_at, _STATE)
    )
    counts: dict[tuple[str, bool], dict[ItemState, int]] = {}
    for batch_id, cancelled_at, state, count in rows.among(connection, counted, item.batch_id, batch_ids):
        counts.setdefault((batch_id, cancelled_at is not None), {})[state] = count
    return {batch_id: BatchStates(states, cancelled) for (batch_id, cancelled), states in counts.items()}


def totals_of(connection: Connection, batch_rows: Sequence[Row[Any]]) -> list[BatchTotals]:
    """The totals of these rows of batches, by a number of statements that grows with neither batches nor items."""
    ids = [row.id for row in batch_rows]
    spent, counts = spendings(connection, ids), _counts(connection, ids)
    return [
        BatchTotals(
            row.id,
            row.key_id,
            row.asked,
            BatchBudget(row.trials, row.seconds),
            spent.get(row.id, Spending()),
            row.created_at,
            row.cancelled_at,
            *_figures(counts.get(row.id, {})),
        )
        for row in batch_rows
    ]


# By state: how many items are in it, how many of them have a gain, and the sum of its logarithms.
_Counts = dict[ItemState, tuple[int, int, float]]


def _counts(connection: Connection, batch_ids: Sequence[str]) -> dict[str, _Counts]:
    item, figures = BatchItemRow, KernelFigureRow
    gained = and_(figures.seq == KernelRow.seq, figures.role == "tuned", figures.default_ratio > 0)
    counted = (func.count(item.number), func.count(figures.default_ratio), func.sum(func.ln(figures.default_ratio)))
    summed = (
        select(item.batch_id, _STATE, *counted)
        .outerjoin(JobRow, JobRow.id == item.job_id)
        .outerjoin(KernelRow, KernelRow.id == func.coalesce(JobRow.kernel_id, item.kernel_id))
        .outerjoin(figures, gained)
        .group_by(item.batch_id, _STATE)
    )
    counts: dict[str, _Counts] = {}
    for batch_id, name, items, kernels, logarithms in rows.among(connection, summed, item.batch_id, batch_ids):
        counts.setdefault(batch_id, {})[name] = items, kernels, logarithms or 0.0
    return counts


def _figures(counts: _Counts) -> tuple[dict[ItemState, int], int, float | None]:
    """The states, the number of kernels with a gain, and their gain."""
    states = {state: counts[state][0] for state in get_args(ItemState) if state in counts}
    kernels = sum(count for _, count, _ in counts.values())
    logarithms = sum(logarithm for _, _, logarithm in counts.values())
    return states, kernels, math.exp(logarithms / kernels) if kernels else None
