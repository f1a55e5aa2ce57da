"""Other kernels of a problem: on the same model of device over environments and versions, and on other devices."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select

from tirgemm.service.views.kernels.build_versions import build_versions
from tirgemm.service.views.queries import kernels_by_id
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import GemmRow, KernelRow

MOST = 100


def kernels_of_problem(database: Database, record: KernelRecord) -> list[KernelRecord]:
    """The newest kernels of the problem of ``record``, itself among them, at most MOST: of every device, regime and
    role, in the order in which they were stored, the newest first."""
    problem = select(GemmRow.id).where(GemmRow.text == str(record.gemm)).scalar_subquery()
    wanted = select(KernelRow.id).where(KernelRow.gemm_id == problem).order_by(KernelRow.seq.desc()).limit(MOST)
    with database.read() as connection:
        ids = connection.execute(wanted).scalars().all()
    return kernels_by_id(database, ids)


def environment_of(store: Store, record: KernelRecord) -> dict[str, str]:
    """What a kernel was built and measured under: driver, compilers, packages and their versions, of its device, its
    certificate and its artifact."""
    certified = record.certificate.environment if record.certificate is not None else {}
    return {**dict(record.device.environment), **certified, **build_versions(store, record)}


def changed(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str | None]:
    """What of the environment is another ``there``, by name; None where nothing says it of that side."""
    names = sorted({*here, *there})
    return {name: there.get(name) for name in names if here.get(name) != there.get(name)}
