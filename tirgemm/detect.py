"""The devices of this machine: the CPU, and what the CUDA driver shows. TVM is not imported.

CUDA devices come from the driver through cuda-bindings, their clocks from NVML. A machine without a driver has
just the CPU; ``device("cuda")`` then says what is missing.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from tirgemm import detect_cpu, detect_cuda
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, DoesNotFit, InvalidDevice
from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES, named_device, unknown_device

_PACKAGES = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi"}


def environment() -> tuple[tuple[str, str], ...]:
    """What every device's fingerprint holds: the versions of Python and, where installed, of TVM."""
    versions = [("python", platform.python_version())]
    for name, package in _PACKAGES.items():
        try:
            versions.append((name, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(versions)


@lru_cache(maxsize=1)
def _detected() -> tuple[tuple[Device, ...], str]:
    """The devices, and why there is no CUDA device (empty where there is one)."""
    base = environment()
    cpu = detect_cpu.describe(base)
    try:
        return (cpu, *detect_cuda.describe_all(base)), ""
    except DeviceUnavailable as error:
        return (cpu,), str(error)


def why_no_gpu() -> str:
    """Why this process sees no GPU, in words; empty where it sees one. Looked up once a process."""
    return _detected()[1]


def devices() -> list[Device]:
    """Every device of this machine, the CPU first. Looked up once a process."""
    return list(_detected()[0])


def device(name: str | Device | None = None) -> Device:
    """The device that ``name`` means.

    ``cpu``, ``cuda`` (the first GPU), ``cuda:1``, or an architecture to compile for without having it (``sm_80``);
    None is the first GPU, or the CPU where there is none. A Device is returned as it is.
    Raises InvalidDevice for any other name and DeviceUnavailable for a GPU that is not here.
    """
    if isinstance(name, Device):
        return name
    local_devices, missing = _detected()
    if name is None:
        return local_devices[1] if len(local_devices) > 1 else local_devices[0]
    if not isinstance(name, str):
        raise InvalidDevice(f"a device is a name such as cpu, cuda:0 or sm_80, not {name!r:.80}")
    if name == "cpu":
        return local_devices[0]
    if name in ARCHITECTURES:
        return named_device(name)
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit() and len(number) < 4)):
        raise unknown_device(name)
    if missing:
        raise DeviceUnavailable(
            f"device {name} is not on this machine: {missing}; what it has is cpu ({local_devices[0].model})"
        )
    if int(number or 0) >= len(local_devices) - 1:
        have = ", ".join(f"{each.name} ({each.model})" for each in local_devices[1:])
        raise DeviceUnavailable(
            f"device {name} is not on this machine, which has {len(local_devices) - 1} CUDA devices: {have}"
        )
    return local_devices[1 + int(number or 0)]


def gpu_of(uuid: str) -> Device:
    """The GPU with that UUID. Raises DeviceUnavailable."""
    gpu = next((device for device in devices() if device.kind == "cuda" and device.uuid == uuid), None)
    if gpu is None:
        raise DeviceUnavailable(f"GPU {uuid} is not visible to this process: see CUDA_VISIBLE_DEVICES")
    return gpu


def check_fits(gemm: Gemm, device: Device) -> None:
    """Raise DoesNotFit where the operands of ``gemm`` need more memory than ``device`` has."""
    if gemm.nbytes > device.memory_bytes:
        raise DoesNotFit(
            f"{gemm} needs {gemm.nbytes:,} bytes for its operands; {device.name} ({device.model}) has "
            f"{device.memory_bytes:,}: use a smaller batch or split m"
        )
