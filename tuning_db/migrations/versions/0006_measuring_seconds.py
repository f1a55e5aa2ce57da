"""For how many seconds each device of a worker has been measured on.

Revision 0006, on top of 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("measuring", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("workers", "measuring")
