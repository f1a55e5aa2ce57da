"""The listings that only the API needs, on the tables of ``tuning_db``."""

from __future__ import annotations

from sqlalchemy import select

from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import KernelRecord
from tuning_db import Database
from tuning_db.models import GemmRow, KernelRow
from tuning_db.rows import kernel_of
from tuning_db.store import select_kernels


def list_kernels(
    database: Database,
    *,
    gemm: Gemm | None = None,
    device_key: str | None = None,
    regime: str | None = None,
    role: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[KernelRecord]:
    """Kernels newest first, from behind the id ``after``. Raises InvalidRequest where no kernel has that id."""
    wanted = select_kernels().order_by(KernelRow.seq.desc()).limit(limit)
    if gemm is not None:
        wanted = wanted.where(GemmRow.text == str(gemm))
    for column, value in ((KernelRow.device_key, device_key), (KernelRow.regime, regime), (KernelRow.role, role)):
        if value is not None:
            wanted = wanted.where(column == value)
    with database.read() as connection:
        if after:
            seq = connection.execute(select(KernelRow.seq).where(KernelRow.id == after)).scalar()
            if seq is None:
                raise InvalidRequest(f"after is {after!r}; it must be the `next` of a page before")
            wanted = wanted.where(KernelRow.seq < seq)
        return [kernel_of(row) for row in connection.execute(wanted)]


def unverified_kernel(database: Database, gemm: Gemm, device_key: str, regime: str) -> KernelRecord | None:
    """The newest cross-compiled build of one problem, which the tuner's store never answers with."""
    found = list_kernels(database, gemm=gemm, device_key=device_key, regime=regime, role="unverified", limit=1)
    return found[0] if found else None
