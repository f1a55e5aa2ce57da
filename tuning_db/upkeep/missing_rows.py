"""Figures and documents of kernels that lack them, because a process of an older tirgemm stored the kernel."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, or_, select

from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.answers.kernel_document import RENDERING, put_documents
from tirgemm.tuning_db.answers.kernel_version import raise_version
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import KernelDocumentRow, KernelFigureRow, KernelRow


def add_missing_rows(db: Database) -> int:
    """Write what kernels are listed by, and their documents as this tirgemm renders them, where a kernel has none of
    it; returns of how many. Damaged rows of kernels are passed over."""
    listed = select(KernelFigureRow.seq).where(KernelFigureRow.seq == KernelRow.seq)
    ours = (KernelDocumentRow.seq == KernelRow.seq, KernelDocumentRow.rendering == RENDERING)
    # Not NOT IN, for which PostgreSQL reads the whole list for each kernel where it is too long for its memory.
    lacking = or_(~listed.exists(), ~select(KernelDocumentRow.seq).where(*ours).exists())
    with db.read() as connection:
        numbers = connection.execute(select(KernelRow.seq).where(lacking).order_by(KernelRow.seq)).scalars().all()
    added = 0
    for part in rows.parts(numbers):
        with db.write() as connection:
            # Locked, so that nobody deletes them meanwhile.
            locked = select(KernelRow.id).where(KernelRow.seq.in_(part)).order_by(KernelRow.seq).with_for_update()
            kernels = rows.kernels_by_id(connection, connection.execute(locked).scalars().all())
            _put_figures(db, connection, kernels)
            put_documents(db, connection, [(row.seq, record) for row, record in kernels])
            raise_version(db, connection)
        added += len(kernels)
    return added


def _put_figures(db: Database, connection: Connection, kernels: list[tuple[Row[Any], KernelRecord]]) -> None:
    values = [rows.figure_values(row.seq, row.gemm_id, record) for row, record in kernels]
    if values:
        connection.execute(db.insert(KernelFigureRow).on_conflict_do_nothing(), values)
