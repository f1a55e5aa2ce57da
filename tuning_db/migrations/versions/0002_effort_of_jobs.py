"""The effort that a job is to make; jobs from before there were levels make the usual one.

Revision 0002, on top of 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("effort", sa.String(16), nullable=False, server_default="standard"))


def downgrade() -> None:
    op.drop_column("jobs", "effort")
