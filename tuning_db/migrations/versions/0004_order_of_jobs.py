"""Priority, window and retries of jobs; batches with their items and budgets; pinned kernels.

Revision 0004, on top of 0003.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _of_jobs() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("priority", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("window_start", sa.Integer(), nullable=True),
        sa.Column("window_end", sa.Integer(), nullable=True),
        sa.Column("retries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("retry_reason", sa.Text(), nullable=True),
        sa.Column("batch_id", sa.String(32), nullable=True),
        sa.Column("expected_gain", sa.Float(53), nullable=True),
        sa.Column("recorded_before", sa.Integer(), nullable=True),
        sa.Column("granted_trials", sa.Integer(), nullable=True),
        sa.Column("granted_seconds", sa.Float(53), nullable=True),
    )


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("seq", _SERIAL, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=True),
        sa.Column("seconds", sa.Float(53), nullable=True),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("cancelled_at", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_batches"),
        sa.UniqueConstraint("id", name="uq_batches_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gemm_id", _SERIAL, nullable=False),
        sa.Column("device_key", sa.String(255), nullable=False),
        sa.Column("regime", sa.String(16), nullable=False),
        sa.Column("expected_gain", sa.Float(53), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=True),
        sa.Column("kernel_id", sa.String(32), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name="fk_batch_items_batch_id_batches", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["gemm_id"], ["gemms.id"], name="fk_batch_items_gemm_id_gemms"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_batch_items_job_id_jobs", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["kernel_id"], ["kernels.id"], name="fk_batch_items_kernel_id_kernels", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_items"),
    )
    op.create_index("ix_batch_items_job_id", "batch_items", ["job_id"])
    op.create_index("ix_batch_items_kernel_id", "batch_items", ["kernel_id"])
    for column in _of_jobs():
        op.add_column("jobs", column)
    op.create_index("ix_jobs_batch_id", "jobs", ["batch_id"])
    op.add_column("kernels", sa.Column("pinned_at", sa.String(32), nullable=True))


def downgrade() -> None:
    op.drop_column("kernels", "pinned_at")
    op.drop_index("ix_jobs_batch_id", "jobs")
    for column in reversed(_of_jobs()):
        op.drop_column("jobs", column.name)
    op.drop_table("batch_items")
    op.drop_table("batches")
