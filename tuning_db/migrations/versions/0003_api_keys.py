"""API keys, the audit log, and the key that a job was asked for with.

Revision 0003, on top of 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32), nullable=True),
        sa.Column("revoked_at", sa.String(32), nullable=True),
        sa.Column("last_used_at", sa.String(32), nullable=True),
        sa.Column("requests_per_second", sa.Float(53), nullable=True),
        sa.Column("live_jobs", sa.BigInteger(), nullable=True),
        sa.Column("trials_a_day", sa.BigInteger(), nullable=True),
        sa.Column("bytes_stored", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("sha256", name="uq_api_keys_sha256"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _SERIAL, nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=True),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("object", sa.String(200), nullable=False),
        sa.Column("outcome", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_key_id_id", "audit", ["key_id", "id"])
    op.add_column("jobs", sa.Column("key_id", sa.String(16), nullable=True))
    op.create_index("ix_jobs_key_id", "jobs", ["key_id"])


def downgrade() -> None:
    op.drop_index("ix_jobs_key_id", "jobs")
    op.drop_column("jobs", "key_id")
    op.drop_table("audit")
    op.drop_table("api_keys")
