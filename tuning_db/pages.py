"""Pages of lists of rows, newest first."""

from __future__ import annotations

from sqlalchemy import Connection, select

from tirgemm.errors import PageNotFound
from tirgemm.tuning_db.models import BatchRow, JobRow, KernelRow


def place_of(connection: Connection, table: type[BatchRow | JobRow | KernelRow], row_id: str) -> int:
    """The row number of the id that a page of a list goes on behind. Raises PageNotFound where no row has it."""
    seq: int | None = connection.execute(select(table.seq).where(table.id == row_id)).scalar()
    if seq is None:
        raise PageNotFound(f"after is {row_id!r}; it must be the `next` of a page before")
    return seq
