"""Other kernels of a problem: on the same model of device over environments and versions, and on other devices."""

from __future__ import annotations

from sqlalchemy import select

from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import GemmRow, KernelRow
from tirgemm.tuning_db.rows import kernel_of, select_kernels

MOST = 100


def kernels_of_problem(database: Database, record: KernelRecord) -> list[KernelRecord]:
    """The newest kernels of the problem of ``record``, itself among them, at most MOST: of every device, regime and
    role, in the order in which they were stored, the newest first."""
    problem = select(GemmRow.id).where(GemmRow.text == str(record.gemm)).scalar_subquery()
    wanted = select_kernels().where(KernelRow.gemm_id == problem).order_by(KernelRow.seq.desc()).limit(MOST)
    with database.read() as connection:
        return [kernel_of(row) for row in connection.execute(wanted)]


def environment_of(record: KernelRecord) -> dict[str, str]:
    """What a kernel was built and measured under: driver, compilers, packages and their versions, of its certificate
    and of its device."""
    certified = record.certificate.environment if record.certificate is not None else {}
    return {**dict(record.device.environment), **certified}
