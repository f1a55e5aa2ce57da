"""Version of the stored kernels: a number that every transaction which changes them raises.

Whoever keeps kernels in memory sees by one cheap look whether another process has stored, pinned or deleted one.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from tirgemm.tuning_db.database import KERNELS_CHANGED, Database
from tirgemm.tuning_db.models import KernelVersionRow

_READ = select(KernelVersionRow.number)


def read_version(connection: Connection) -> int:
    """The version of what this transaction sees."""
    return int(connection.execute(_READ).scalar() or 0)


def raise_version(db: Database, connection: Connection) -> None:
    """Say that this transaction, one of ``Database.write``, changes kernels.

    Call it last: on PostgreSQL the row stays locked until the end, and who waits for it must hold nothing that this
    transaction still waits for.
    """
    statement = db.insert(KernelVersionRow).values(id=1, number=1)
    higher = {"number": KernelVersionRow.number + 1}
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=higher))
    connection.info[KERNELS_CHANGED] = True
