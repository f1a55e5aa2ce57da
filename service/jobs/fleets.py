"""The fleet of the engine that the settings name."""

from __future__ import annotations

from tirgemm._extras import require
from tirgemm.artifact.sign import Signer
from tirgemm.detect import device as detect_device
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import InvalidDevice
from tirgemm.service.jobs.engine import Fleet
from tirgemm.service.settings import ALL_DEVICES, Settings
from tirgemm.tuning.records.store import Store

RAY_KINDS = ("cpu", "cuda")


def require_devices(settings: Settings) -> None:
    """Raise InvalidDevice, DeviceUnavailable or MissingExtra where a worker could not serve what it is told to, and
    InvalidRequest where it could not time it."""
    if settings.engine == "ray":
        require("the engine ray", "ray")
        if settings.devices not in (ALL_DEVICES, *RAY_KINDS):
            raise InvalidDevice(
                f"devices is {settings.devices!r:.80}; on a Ray cluster it must be {ALL_DEVICES} or one of the kinds "
                f"{', '.join(RAY_KINDS)}"
            )
        return
    from tirgemm.tuning.measure.conditions import timed_cache_bytes

    timed_cache_bytes()  # as it refuses a variable that cannot be
    if settings.devices != ALL_DEVICES:
        chosen_devices(settings.devices)


def chosen_devices(names: str) -> list[Device]:
    """The devices of this host that ``names`` means: ``all``, or names such as ``cuda:0,cuda:1``, each once.

    Raises InvalidDevice and DeviceUnavailable.
    """
    if names == ALL_DEVICES:
        return devices()
    chosen: list[Device] = []
    for name in names.split(","):
        device = detect_device(name.strip())
        if not device.present:
            raise InvalidDevice(device.only_named)
        if device in chosen:
            raise InvalidDevice(f"devices {names!r:.80} has {device.name} twice; each device is served once")
        chosen.append(device)
    return chosen


def open_fleet(settings: Settings, store: Store, signer: Signer) -> Fleet:
    """The engines of this host's devices, or of those of a Ray cluster. Raises as ``require_devices``, and
    DeviceUnavailable where there is no such cluster."""
    require_devices(settings)
    if settings.engine == "ray":
        from tirgemm.service.jobs.ray_fleet import RayFleet

        kinds = RAY_KINDS if settings.devices == ALL_DEVICES else (settings.devices,)
        return RayFleet(store, signer, settings.address, kinds=kinds, lock_dir=settings.lock_dir)
    from tirgemm.service.jobs.local_fleet import LocalFleet

    return LocalFleet(store, signer, settings.lock_dir, settings.processes, chosen_devices(settings.devices))
