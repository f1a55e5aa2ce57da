"""Seconds of all runs of a job and when it was last asked for, indexes of the queue, and a quota on batches.

Revision 0006, on top of 0005.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("claimed_at", sa.Float(53), nullable=True))
    op.add_column("jobs", sa.Column("spent_seconds", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("asked_at", sa.String(32), nullable=False, server_default=""))
    op.create_index("ix_batches_key_id_created_at", "batches", ["key_id", "created_at"])
    op.create_index("ix_jobs_lease_until", "jobs", ["lease_until"])
    op.create_index("ix_jobs_queue_order", "jobs", ["status", sa.text("priority DESC"), "seq"])
    op.add_column("api_keys", sa.Column("batch_problems_a_day", sa.BigInteger(), nullable=True))
    op.execute("UPDATE jobs SET asked_at = created_at")
    op.execute("UPDATE jobs SET lease_until = NULL WHERE status NOT IN ('queued', 'running')")
    _count_ended()


def _count_ended() -> None:
    """What the ended jobs of batches had spent by their times, as it was counted before."""
    names = ("seq", "started_at", "finished_at", "granted_seconds", "spent_seconds", "batch_id")
    jobs = sa.table("jobs", *map(sa.column, names))
    ended = (jobs.c.batch_id.is_not(None), jobs.c.started_at.is_not(None), jobs.c.finished_at.is_not(None))
    for row in op.get_bind().execute(sa.select(jobs).where(*ended)).all():
        took = datetime.fromisoformat(row.finished_at) - datetime.fromisoformat(row.started_at)
        seconds = max(0.0, took.total_seconds())
        if row.granted_seconds is not None:
            seconds = min(seconds, row.granted_seconds)
        op.execute(sa.update(jobs).where(jobs.c.seq == row.seq).values(spent_seconds=seconds))


def downgrade() -> None:
    op.drop_column("api_keys", "batch_problems_a_day")
    op.drop_index("ix_batches_key_id_created_at", "batches")
    op.drop_index("ix_jobs_queue_order", "jobs")
    op.drop_index("ix_jobs_lease_until", "jobs")
    for name in ("asked_at", "spent_seconds", "claimed_at"):
        op.drop_column("jobs", name)
