"""Multiplicity of each problem of a batch; that of older batches was not recorded, and each problem counts once.

Revision 0014, on top of 0013.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batch_items", sa.Column("times", sa.Integer(), nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("batch_items", "times")
