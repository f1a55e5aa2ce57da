"""A number that every change of the stored kernels raises, for those who keep some of them in memory.

Revision 0005, on top of 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kernel_version",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_kernel_version"),
    )


def downgrade() -> None:
    op.drop_table("kernel_version")
