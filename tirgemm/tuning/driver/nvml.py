"""Clock, power, temperature and throttle reasons of a GPU while it works, by NVML."""

from __future__ import annotations

import statistics
from typing import Any

_REASONS = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}


class Probe:
    """Samples one GPU; every figure is left out where NVML is missing or does not say."""

    def __init__(self, uuid: str) -> None:
        self._clocks: list[int] = []
        self._watts: list[float] = []
        self._degrees: list[int] = []
        self._reasons = 0
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception:  # absent, of another version than the driver, or forbidden in this container
            self._nvml = None

    def forget(self) -> None:
        """Drop all readings."""
        self._clocks.clear()
        self._watts.clear()
        self._degrees.clear()
        self._reasons = 0

    def sample(self) -> None:
        """Look once; meant for while kernels run."""
        nvml = self._nvml
        if nvml is None:
            return
        try:
            self._clocks.append(int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)))
            self._watts.append(nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
            self._degrees.append(int(nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)))
            self._reasons |= int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        except nvml.NVMLError:
            return

    def summary(self) -> dict[str, Any]:
        """Median SM clock, highest power and temperature, and every reason to throttle that was seen."""
        readings: dict[str, Any] = {"throttled": [name for bit, name in _REASONS.items() if self._reasons & bit]}
        if self._clocks:
            readings["clock_mhz"] = round(statistics.median(self._clocks))
        if self._watts:
            readings["power_w"] = round(max(self._watts), 1)
        if self._degrees:
            readings["temperature_c"] = max(self._degrees)
        return readings
