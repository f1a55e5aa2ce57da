"""The devices of this host that a worker is to serve, by their names."""

from __future__ import annotations

from tirgemm.detect import device as detect_device
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import InvalidDevice
from tirgemm.service.settings import ALL_DEVICES


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
