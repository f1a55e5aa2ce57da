"""The CUDA driver as the measuring process uses it: memory, kernels, streams, events, graphs. cuda-bindings only."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, DoesNotFit
from tirgemm.tuning.driver.nvrtc import compile_source

# A GPU that cannot be opened is tried again after so many seconds each: a process that was killed may hold its memory.
OPEN_PAUSES_S = (0.5, 2.0)
_OUT_OF_MEMORY = 2


class CudaError(Exception):
    """The driver refused, or a kernel broke the context: the process is of no more use and ends with it."""


class OutOfMemory(CudaError, DoesNotFit):
    """The GPU has less memory left than the driver was asked for: that breaks nothing, and says nothing of a kernel."""


def call(name: str, *arguments: Any) -> Any:
    """``name`` of the driver API; its one result, its results, or None. Raises CudaError."""
    from cuda.bindings import driver

    status, *values = getattr(driver, name)(*arguments)
    if int(status) == _OUT_OF_MEMORY:
        words = "end what else uses the GPU, or take a smaller problem"
        raise OutOfMemory(f"{name} answers {status.name} ({_OUT_OF_MEMORY}): {words}")
    if int(status):
        raise CudaError(f"{name} answers {status.name} ({int(status)})")
    return values[0] if len(values) == 1 else (values or None)


class Memory:
    """Device memory, freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = int(call("cuMemAlloc", max(1, nbytes)))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            from cuda.bindings import driver

            driver.cuMemFree(self.address)


class Module:
    """Kernels of one source file, compiled for one architecture."""

    def __init__(self, file: Path, arch: str) -> None:
        self._module = call("cuModuleLoadData", _compiled(file, arch))
        self._functions: dict[str, Any] = {}

    def launch(self, stream: Any, name: str, grid: int, block: int, *arguments: Any) -> None:
        """Queue a kernel; ``arguments`` are ctypes values, structures included."""
        if name not in self._functions:
            self._functions[name] = call("cuModuleGetFunction", self._module, name.encode())
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        address = ctypes.addressof(pointers)
        call("cuLaunchKernel", self._functions[name], grid, 1, 1, block, 1, 1, 0, stream, address, 0)


@lru_cache(maxsize=8)
def _compiled(file: Path, arch: str) -> bytes:
    return compile_source(file.read_text(), arch, name=file.name).data


class Gpu:
    """One GPU, found by UUID, with its primary context current in this thread and a stream of our own."""

    def __init__(self, device: Device) -> None:
        """Raises DeviceUnavailable where the GPU cannot be opened, also after some seconds: no kernel has run that
        could be the cause."""
        self.device = device
        for pause in (*OPEN_PAUSES_S, None):
            try:
                self._open(device)
                return
            except CudaError as error:
                if pause is None:
                    raise DeviceUnavailable(f"GPU {device.uuid} cannot be opened: {error}") from error
                time.sleep(pause)

    def _open(self, device: Device) -> None:
        call("cuInit", 0)
        self.ordinal = _ordinal(device)
        self.handle = call("cuDeviceGet", self.ordinal)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        call("cuCtxSetCurrent", self.context)
        # Non-blocking: work of others on the legacy stream must not order itself with ours.
        self.stream = call("cuStreamCreate", _flag("CUstream_flags", "CU_STREAM_NON_BLOCKING"))

    def synchronize(self) -> None:
        """Wait for the stream. A kernel that broke the context is noticed here."""
        call("cuStreamSynchronize", self.stream)

    def free_bytes(self) -> int:
        return int(call("cuMemGetInfo")[0])

    def event(self) -> Any:
        return call("cuEventCreate", 0)

    def record(self, event: Any) -> None:
        call("cuEventRecord", event, self.stream)

    def microseconds(self, first: Any, second: Any) -> float:
        """From one recorded event to another; waits for the second."""
        call("cuEventSynchronize", second)
        return float(call("cuEventElapsedTime", first, second)) * 1e3

    def capture(self, work: Callable[[], None]) -> Any:
        """An executable graph of what ``work`` queues on the stream."""
        # Relaxed: what else this thread does meanwhile (a first allocation of PyTorch's, say) is not forbidden.
        call("cuStreamBeginCapture", self.stream, _flag("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_RELAXED"))
        try:
            work()
        except BaseException:
            from cuda.bindings import driver

            driver.cuStreamEndCapture(self.stream)  # whatever it answers
            raise
        graph = call("cuStreamEndCapture", self.stream)
        executable = call("cuGraphInstantiate", graph, 0)
        call("cuGraphDestroy", graph)
        call("cuGraphUpload", executable, self.stream)
        return executable

    def to_host(self, address: int, out: Any) -> None:
        """Copy into a NumPy array, behind all work on the stream."""
        self.synchronize()
        call("cuMemcpyDtoH", out.ctypes.data, address, out.nbytes)

    def to_device(self, address: int, array: Any) -> None:
        """Copy a contiguous NumPy array; it has arrived when this returns."""
        call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
        call("cuCtxSynchronize")


def _flag(kind: str, name: str) -> Any:
    from cuda.bindings import driver

    value = getattr(getattr(driver, kind), name)
    return value if kind == "CUstreamCaptureMode" else int(value)


def _ordinal(device: Device) -> int:
    """The driver's number of the GPU of that UUID: CUDA_VISIBLE_DEVICES may differ from the parent's view."""
    uuids: Sequence[str] = [_uuid(index) for index in range(int(call("cuDeviceGetCount")))]
    if device.uuid not in uuids:
        raise DeviceUnavailable(f"GPU {device.uuid} is not visible to the measuring process, which sees {list(uuids)}")
    return uuids.index(device.uuid)


def _uuid(index: int) -> str:
    text = bytes(call("cuDeviceGetUuid", call("cuDeviceGet", index)).bytes).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
