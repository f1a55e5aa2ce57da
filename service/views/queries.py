"""Listings and counts that the API and the command line need, on the tables of ``tuning_db``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from tirgemm.device import Device, is_device_key, is_device_place
from tirgemm.errors import InvalidDevice
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.status import Role
from tirgemm.tuning.records import KernelRecord, Status
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import Database, rows
from tirgemm.tuning_db.models import DeviceRow, GemmRow, KernelRow
from tirgemm.tuning_db.pages import place_of


@dataclass(frozen=True)
class KernelFilter:
    """Which kernels are listed: only those of each that is not None."""

    gemm: Gemm | None = None
    device_keys: Sequence[str] | None = None
    regime: Regime | None = None
    role: Role | None = None


def kernel_ids(
    database: Database, wanted: KernelFilter, *, after: str = "", limit: int = 100
) -> list[tuple[str, bool]]:
    """Ids of kernels newest first, from behind the id ``after``, and whether each is pinned.

    Raises InvalidRequest where no kernel has that id.
    """
    ids = select(KernelRow.id, KernelRow.pinned_at).order_by(KernelRow.seq.desc()).limit(limit)
    if wanted.gemm is not None:
        gemm = select(GemmRow.id).where(GemmRow.text == str(wanted.gemm)).scalar_subquery()
        ids = ids.where(KernelRow.gemm_id == gemm)
    if wanted.device_keys is not None:
        ids = ids.where(KernelRow.device_key.in_(list(wanted.device_keys)))
    for column, value in ((KernelRow.regime, wanted.regime), (KernelRow.role, wanted.role)):
        if value is not None:
            ids = ids.where(column == value)
    with database.read() as connection:
        if after:
            ids = ids.where(KernelRow.seq < place_of(connection, KernelRow, after))
        return [(row.id, row.pinned_at is not None) for row in connection.execute(ids)]


def kernels_by_id(database: Database, ids: Sequence[str]) -> list[KernelRecord]:
    """The kernels of these ids that are there, in the order of the ids; damaged ones are left out, and logged."""
    with database.read() as connection:
        kernels = [record for _, record in rows.kernels_by_id(connection, ids)]
    order = {kernel_id: at for at, kernel_id in enumerate(ids)}
    return sorted(kernels, key=lambda record: order[record.id])


def list_kernels(database: Database, wanted: KernelFilter, limit: int) -> list[KernelRecord]:
    """Kernels newest first."""
    return kernels_by_id(database, [name for name, _ in kernel_ids(database, wanted, limit=limit)])


def unverified_kernel(database: Database, gemm: Gemm, device_key: str, regime: Regime) -> KernelRecord | None:
    """The newest cross-compiled build of one problem, which the tuner's store never answers with."""
    kernels = list_kernels(database, KernelFilter(gemm, [device_key], regime, "unverified"), limit=1)
    return kernels[0] if kernels else None


def known_devices(database: Database) -> list[Device]:
    """Every class of devices that a kernel or a candidate was stored for, by its key."""
    with database.read() as connection:
        descriptions = connection.execute(select(DeviceRow.description).order_by(DeviceRow.key)).scalars()
        return [Device.from_json(description) for description in descriptions]


def device_keys(database: Database, name: str, described: Iterable[Device] = ()) -> list[str]:
    """The keys of every device, known or ``described``, that ``name`` (a key, or a name such as ``cpu`` or ``sm_90a``)
    can mean. Raises InvalidDevice for what no device can be called."""
    devices = [*known_devices(database), *described, *(named_device(arch) for arch in ARCHITECTURES)]
    keys = {device.key for device in devices if name in device.names}
    if is_device_key(name):
        keys.add(name)
    elif not keys and not is_device_place(name):
        names = ", ".join(("cpu", "cuda", "cuda:N", *sorted({device.arch for device in devices})))
        raise InvalidDevice(f"device {name!r:.80} is unknown; a device is a key, or one of the names {names}")
    return sorted(keys)


def trials_recorded(store: Store, gemm: Gemm, device_key: str, regime: Regime) -> int:
    """How many candidates of one problem were tried: what a budget's trials count from."""
    return sum(candidate.status is not Status.PRUNED for candidate in store.candidates(gemm, device_key, regime))
