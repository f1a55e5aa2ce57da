"""Resolve the device that a request names: a live worker's, or one to cross-compile for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tirgemm.device import Device, is_device_key, is_device_place
from tirgemm.errors import DeviceUnavailable, InvalidDevice
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.service.http.problems import Problem

NO_WORKER = "no worker is alive; start one with `tirgemm worker`, or ask again if one is still starting"


@dataclass(frozen=True)
class Target:
    """A device class by its key. ``device`` is None where only the key is known; ``here``: a live worker has it."""

    key: str
    device: Device | None
    here: bool


def resolve(name: str | None, devices: Iterable[Device]) -> Target:
    """What ``name`` (a key, ``cpu``, ``cuda:0``, ``sm_90a``; None: the best) means beside the live workers' devices.

    Raises InvalidDevice for a name that means nothing or more than one thing, and the 409 problem where a place such as
    ``cuda:0`` is not there, so that nobody can say which device it would be.
    """
    classes = {device.key: device for device in devices}
    if name is None:
        if not classes:
            raise unavailable("no device was named, and", classes.values())
        best = max(classes.values(), key=_rank)
        return Target(best.key, best, True)
    matching = [d for d in classes.values() if name in d.names]
    if len(matching) > 1:
        keys = ", ".join(d.key for d in matching)
        raise InvalidDevice(f"device {name!r} means several devices of the workers; give one of the keys {keys}")
    if matching:
        return Target(matching[0].key, matching[0], True)
    if is_device_key(name):
        return Target(name, _named_classes().get(name), False)
    if is_device_place(name):
        raise unavailable(f"device {name!r} is with no live worker;", classes.values())
    device = named_device(name)
    return Target(device.key, device, False)


@cache
def _named_classes() -> dict[str, Device]:
    """The device of each architecture that can be named without one, by its key."""
    return {device.key: device for device in map(named_device, ARCHITECTURES)}


def unavailable(why: str, devices: Iterable[Device], **extra: Any) -> Problem:
    """The 409 that says which devices the live workers have, with ``extra`` members."""
    known = [{"key": d.key, "name": d.name} for d in devices]
    listed = ", ".join(f"{d['name']} ({d['key']})" for d in known)
    detail = f"{why} live workers have {listed}" if known else NO_WORKER
    return Problem(DeviceUnavailable.status, detail, DeviceUnavailable.code, devices=known, **extra)


def _rank(device: Device) -> tuple[bool, float, int]:
    return device.kind == "cuda", max((rate for _, rate in device.peak_tflops), default=0.0), device.units
