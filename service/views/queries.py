"""Listings and counts that the API and the command line need, on the tables of ``tuning_db``."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.tuning.records import KernelRecord, Status
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import DeviceRow, GemmRow, KernelRow
from tirgemm.tuning_db.rows import kernel_of
from tirgemm.tuning_db.store import select_kernels


def list_kernels(
    database: Database,
    *,
    gemm: Gemm | None = None,
    device_keys: Sequence[str] | None = None,
    regime: Regime | None = None,
    role: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[KernelRecord]:
    """Kernels newest first, from behind the id ``after``. Raises InvalidRequest where no kernel has that id."""
    wanted = select_kernels().order_by(KernelRow.seq.desc()).limit(limit)
    if gemm is not None:
        wanted = wanted.where(GemmRow.text == str(gemm))
    if device_keys is not None:
        wanted = wanted.where(KernelRow.device_key.in_(list(device_keys)))
    for column, value in ((KernelRow.regime, regime), (KernelRow.role, role)):
        if value is not None:
            wanted = wanted.where(column == value)
    with database.read() as connection:
        if after:
            seq = connection.execute(select(KernelRow.seq).where(KernelRow.id == after)).scalar()
            if seq is None:
                raise InvalidRequest(f"after is {after!r}; it must be the `next` of a page before")
            wanted = wanted.where(KernelRow.seq < seq)
        return [kernel_of(row) for row in connection.execute(wanted)]


def unverified_kernel(database: Database, gemm: Gemm, device_key: str, regime: Regime) -> KernelRecord | None:
    """The newest cross-compiled build of one problem, which the tuner's store never answers with."""
    found = list_kernels(database, gemm=gemm, device_keys=[device_key], regime=regime, role="unverified", limit=1)
    return found[0] if found else None


def device_keys(database: Database, name: str) -> list[str]:
    """The keys of every known device that ``name`` (a key, or a name such as ``cpu`` or ``sm_90a``) can mean."""
    with database.read() as connection:
        known = [Device.from_json(found) for found in connection.execute(select(DeviceRow.description)).scalars()]
    known += [named_device(arch) for arch in ARCHITECTURES]
    # Every database takes it: PostgreSQL refuses NUL, which no key holds.
    return sorted({device.key for device in known if name in device.names} | {name.replace("\0", "")})


def trials_recorded(store: Store, gemm: Gemm, device_key: str, regime: Regime) -> int:
    """How many candidates of one problem were tried: what a budget's trials count from."""
    return sum(candidate.status is not Status.PRUNED for candidate in store.candidates(gemm, device_key, regime))
