"""Kernels chosen from records of another device, jobs that ask for such, and a checksum of each rendered document.

Documents without one are made again when a server starts.

Revision 0012, on top of 0011.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ROWS_AT_ONCE = 1000
_KERNELS = sa.table("kernels", *map(sa.column, ("seq", "device_key", "timings", "other_device")))


def upgrade() -> None:
    op.add_column("kernels", sa.Column("other_device", sa.String(255)))
    op.add_column("jobs", sa.Column("other_devices", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("kernel_documents", sa.Column("sha256", sa.String(64), server_default="", nullable=False))
    connection, kernels = op.get_bind(), _KERNELS.c
    shipped = sa.cast(kernels.timings, sa.Text).like('%"shipped"%')
    columns = (kernels.seq, kernels.device_key, sa.cast(kernels.timings, sa.Text))
    after = -1
    while page := connection.execute(
        sa.select(*columns).where(shipped, kernels.seq > after).order_by(kernels.seq).limit(ROWS_AT_ONCE)
    ).all():
        for seq, key, timings in page:
            other = _origin(timings)
            if other is not None and other != key:
                connection.execute(_KERNELS.update().where(kernels.seq == seq).values(other_device=other[:255]))
        after = page[-1].seq


def _origin(timings: str) -> str | None:
    """The class of devices that the configs of a kernel with these timings are from; None where nothing says."""
    try:
        device = json.loads(timings)["search"]["shipped"]["device"]
    except (ValueError, KeyError, TypeError):
        return None
    return device if isinstance(device, str) else None


def downgrade() -> None:
    for table, column in (("kernel_documents", "sha256"), ("jobs", "other_devices"), ("kernels", "other_device")):
        op.drop_column(table, column)
