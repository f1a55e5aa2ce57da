"""The rendered JSON document of each kernel. Those of the kernels that are there are made when a server starts.

Revision 0011, on top of 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kernel_documents",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("rendering", sa.Integer(), nullable=False),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["kernels.seq"], name="fk_kernel_documents_seq_kernels", ondelete="CASCADE"),
    )
    op.create_index("ix_kernel_documents_rendering_seq", "kernel_documents", ["rendering", "seq"])


def downgrade() -> None:
    op.drop_table("kernel_documents")
