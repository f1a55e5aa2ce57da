"""An index of candidates by problem that holds their family, status and time, for lists that count them.

Revision 0010, on top of 0009.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NAME = "ix_candidates_counts"
_COLUMNS = ["gemm_id", "device_key", "regime", "family", "status", "search_us"]


def upgrade() -> None:
    op.create_index(_NAME, "candidates", _COLUMNS)


def downgrade() -> None:
    op.drop_index(_NAME, "candidates")
