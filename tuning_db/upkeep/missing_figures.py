"""Figures of kernels that lack them, because a process of an older tirgemm stored the kernel after the upgrade."""

from __future__ import annotations

import logging

from sqlalchemy import select

from tirgemm.errors import StoreError
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.kernel_version import raise_version
from tirgemm.tuning_db.models import KernelFigureRow, KernelRow

logger = logging.getLogger("tirgemm.tuning_db")


def add_missing_figures(db: Database) -> int:
    """Write what kernels are listed by where a kernel has none of it; returns of how many. Rows of kernels that make no
    sense are passed over."""
    lacking = ~select(KernelFigureRow.seq).where(KernelFigureRow.seq == KernelRow.seq).exists()
    with db.read() as connection:
        numbers = connection.execute(select(KernelRow.seq).where(lacking).order_by(KernelRow.seq)).scalars().all()
    added = 0
    for part in rows.parts(numbers):
        # Locked, so that nobody deletes them meanwhile.
        wanted = rows.select_kernels().where(KernelRow.seq.in_(part)).with_for_update(of=KernelRow)
        with db.write() as connection:
            for row in connection.execute(wanted.order_by(KernelRow.seq)).all():
                try:
                    figures = rows.figure_values(row.seq, row.gemm_id, rows.kernel_of(row))
                except StoreError as error:
                    logger.warning("a kernel is not listed: %s", error)
                    continue
                statement = db.insert(KernelFigureRow).values(figures).on_conflict_do_nothing()
                added += len(connection.execute(statement.returning(KernelFigureRow.seq)).all())
            raise_version(db, connection)
    return added
