"""The GPUs that the CUDA driver shows, as Devices: limits from the driver, clocks from NVML."""

from __future__ import annotations

import ctypes
from typing import Any

from tirgemm.device import Device, Limits
from tirgemm.errors import DeviceUnavailable
from tirgemm.hardware import arch_of, peak_gbps, peak_tflops

_NO_DRIVER = "the NVIDIA driver (libcuda.so.1) is not installed"


def describe_all(environment: tuple[tuple[str, str], ...]) -> list[Device]:
    """One Device a visible GPU, in the driver's order (CUDA_VISIBLE_DEVICES counts). Raises DeviceUnavailable."""
    driver = _driver()
    count = int(_call(driver, "cuDeviceGetCount"))
    if not count:
        raise DeviceUnavailable("the NVIDIA driver shows no device; check CUDA_VISIBLE_DEVICES")
    number = int(_call(driver, "cuDriverGetVersion"))
    cuda = f"{number // 1000}.{number % 1000 // 10}"
    with _Nvml() as nvml:
        base = (*environment, ("cuda", cuda), ("driver", nvml.driver_version()))
        return [_describe(driver, nvml, index, base) for index in range(count)]


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        if not _driver_is_installed():
            raise DeviceUnavailable(_NO_DRIVER) from error
        raise DeviceUnavailable(
            "the NVIDIA driver is there, but the package cuda-bindings is not installed: pip install 'tirgemm[cuda]'"
        ) from error
    try:
        status = driver.cuInit(0)[0]
    except (RuntimeError, OSError) as error:
        raise DeviceUnavailable(_NO_DRIVER) from error
    if int(status):
        raise DeviceUnavailable(f"the NVIDIA driver does not start: cuInit answers {status.name} ({int(status)})")
    return driver


def _driver_is_installed() -> bool:
    """Whether the driver's library can be loaded, which needs none of our packages."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _call(driver: Any, name: str, *args: Any) -> Any:
    status, *values = getattr(driver, name)(*args)
    if int(status):
        raise DeviceUnavailable(f"the NVIDIA driver fails: {name} answers {status.name} ({int(status)})")
    return values[0]


def _describe(driver: Any, nvml: _Nvml, index: int, environment: tuple[tuple[str, str], ...]) -> Device:
    handle = _call(driver, "cuDeviceGet", index)

    def attribute(name: str) -> int:
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call(driver, "cuDeviceGetAttribute", which, handle))

    uuid = _uuid_text(bytes(_call(driver, "cuDeviceGetUuid", handle).bytes))
    arch = arch_of((attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")))
    units = attribute("MULTIPROCESSOR_COUNT")
    clock, memory_clock = nvml.clocks_mhz(uuid)
    clock = clock or attribute("CLOCK_RATE") // 1000
    memory_clock = memory_clock or attribute("MEMORY_CLOCK_RATE") // 1000
    return Device(
        kind="cuda",
        arch=arch,
        model=bytes(_call(driver, "cuDeviceGetName", 256, handle)).split(b"\0")[0].decode(),
        units=units,
        memory_bytes=int(_call(driver, "cuDeviceTotalMem", handle)),
        limits=Limits(
            shared_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            shared_reserved_per_block=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
            registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            registers_per_thread=255,
            threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
            threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            blocks_per_sm=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            l2_bytes=attribute("L2_CACHE_SIZE"),
        ),
        clock_mhz=clock,
        memory_clock_mhz=memory_clock,
        peak_tflops=peak_tflops(arch, units, clock),
        peak_gbps=peak_gbps(memory_clock, attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8),
        uuid=uuid,
        index=index,
        environment=environment,
        power_limit_w=nvml.power_limit_w(uuid),
    )


def _uuid_text(raw: bytes) -> str:
    """``GPU-`` and the UUID as NVML and nvidia-smi write it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


class _Nvml:
    """NVML for as long as the block runs; answers with nothing where it is missing."""

    def __init__(self) -> None:
        self._nvml: Any = None

    def __enter__(self) -> _Nvml:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        except Exception:  # absent, or a driver that does not match it: the driver API's own figures will do
            self._nvml = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def driver_version(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion()) if self._nvml is not None else "unknown"

    def clocks_mhz(self, uuid: str) -> tuple[int, int]:
        """The highest SM and memory clocks; zeros where NVML does not say."""
        if self._nvml is None:
            return 0, 0
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            kinds = (self._nvml.NVML_CLOCK_SM, self._nvml.NVML_CLOCK_MEM)
            sm, memory = (int(self._nvml.nvmlDeviceGetMaxClockInfo(handle, kind)) for kind in kinds)
        except self._nvml.NVMLError:
            return 0, 0
        return sm, memory

    def power_limit_w(self, uuid: str) -> int:
        """The power limit that is set, in watts, where it is not that of the model; 0 where it is, or nobody says."""
        if self._nvml is None:
            return 0
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            limit = int(self._nvml.nvmlDeviceGetPowerManagementLimit(handle))
            usual = int(self._nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        except self._nvml.NVMLError:
            return 0
        return 0 if limit == usual else round(limit / 1000)
