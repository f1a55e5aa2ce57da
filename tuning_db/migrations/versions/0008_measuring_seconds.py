"""For how many seconds each device of a worker has been measured on.

Revision 0008, on top of 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("measuring", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("workers", "measuring")
