"""An index of jobs by status and number, for lists of the newest of one status.

It takes the place of one by status, device and number, which no list could use for its order.

Revision 0013, on top of 0012.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_BEFORE, _AFTER = "ix_jobs_status_device_key_seq", "ix_jobs_status_seq"


def upgrade() -> None:
    op.create_index(_AFTER, "jobs", ["status", "seq"])
    op.drop_index(_BEFORE, "jobs")


def downgrade() -> None:
    op.create_index(_BEFORE, "jobs", ["status", "device_key", "seq"])
    op.drop_index(_AFTER, "jobs")
