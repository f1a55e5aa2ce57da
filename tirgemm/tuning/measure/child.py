"""The measuring process: ``python -m tirgemm.tuning.measure.child``. Loads packages as users do, but whatever
OMP_NUM_THREADS is; TVM is not imported."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tirgemm.artifact import Kernel, Trust, load
from tirgemm.device import Device
from tirgemm.errors import ArtifactError, CallError, DoesNotFit, InvalidRequest, LaunchFailed, TirgemmError
from tirgemm.tuning.measure.errors import MeasurementCrashed
from tirgemm.tuning.measure.requests import Open, ReadBandwidth, Request
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.child_rpc import Channel, serve, without_torch
from tirgemm.tuning.process.locks import DeviceLock
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.flow import verify
from tirgemm.tuning.verify.result import Verification

if TYPE_CHECKING:
    from tirgemm.tuning.measure.cuda_session import CudaSession
    from tirgemm.tuning.measure.host_session import HostSession

Session: TypeAlias = "CudaSession | HostSession"
# Finalists of one selection stay loaded: unloading a GPU library costs milliseconds.
_LOADED = 12
# What a kernel that cannot be launched says then, on either kind of device.
_NO_MEMORY = re.compile("no [0-9]+ bytes of workspace|CUDA_ERROR_OUT_OF_MEMORY")


class _Process:
    """What stays between requests: the device's session and the loaded kernels."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._session: Session | None = None
        self._device: Device | None = None
        self._kernels: OrderedDict[bytes, Kernel] = OrderedDict()

    def __call__(self, request: Request | ReadBandwidth | Open) -> tuple[Verification | None, SampleSet | None]:
        with DeviceLock(request.device.lock_key, request.lock_dir, on_wait=self._channel.waiting):
            self._channel.alive()
            session = self._open(request.device)
            if isinstance(request, Open):
                return None, None
            if isinstance(request, ReadBandwidth):
                return None, session.stream()
            kernel = self._load(request.package, request.trust)
            against = self._opponents(kernel, request)
            try:
                return self._work(session, kernel, against, request)
            except (CallError, LaunchFailed, ArtifactError, MemoryError) as error:
                session.require_usable()
                if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
                    words = "end what else uses the memory, or take a smaller problem"
                    raise DoesNotFit(f"{kernel.gemm}: {error}: {words}") from error
                raise MeasurementCrashed(f"the kernel does not run: {error}") from error

    def _opponents(self, kernel: Kernel, request: Request) -> dict[str, Kernel]:
        if request.time is None:
            return {}
        problem = request.time.options.problem
        against = {name: self._load(package, request.trust) for name, package in request.time.against.items()}
        for name, other in against.items():
            # An unrestricted kernel may run beside an invariant one.
            if problem(other.gemm).with_(invariant=kernel.gemm.invariant) != problem(kernel.gemm):
                raise InvalidRequest(f"opponent {name!r} computes {other.gemm}, not {kernel.gemm}")
        return against

    def _work(
        self, session: Session, kernel: Kernel, against: dict[str, Kernel], request: Request
    ) -> tuple[Verification | None, SampleSet | None]:
        verification = None
        if request.verify is not None:
            with spans.span("verify", level=request.verify.level):
                verification = verify(
                    session.backend,
                    kernel.gemm,
                    kernel.raw,
                    kernel_sha256=kernel.kernel_sha256,
                    level=request.verify.level,
                    seed=request.verify.seed,
                    make_chain=session.make_chain if kernel.manifest.dependent_launch else None,
                )
            if not verification.passed:
                return verification, None
        if request.time is None:
            return verification, None
        with spans.span("time", reason=request.time.options.reason):
            return verification, session.time(kernel, against, request.time)

    def open_ahead(self, device: Device, lock_dir: Path) -> None:
        """Make the session now, unless another process measures on the device: then the first request makes it."""
        lock = DeviceLock(device.lock_key, lock_dir)
        with contextlib.suppress(TirgemmError):  # the first request will say the same
            lock.acquire(timeout_s=0)
            try:
                self._open(device)
            finally:
                lock.release()

    def _open(self, device: Device) -> Session:
        """The session of the one device of this process, made at the first request where it was not made ahead."""
        if self._session is None or self._device != device:
            if device.kind == "cuda":
                from tirgemm.tuning.measure.cuda_session import CudaSession

                self._session = CudaSession(device, self._channel.alive)
            else:
                from tirgemm.tuning.measure.host_session import HostSession

                self._session = HostSession(device, self._channel.alive)
            self._device = device
        return self._session

    def _load(self, package: bytes, trust: Trust) -> Kernel:
        if package in self._kernels:
            self._kernels.move_to_end(package)
            return self._kernels[package]
        kernel = load(package, trust=trust, threads=0)
        self._kernels[package] = kernel
        if len(self._kernels) > _LOADED:
            _, oldest = self._kernels.popitem(last=False)
            oldest.close()
        return kernel


def _prepare(channel: Channel, arguments: list[str]) -> Callable[[Any], Any]:
    """``arguments``: none, or a device's JSON and the folder of the locks: that device's session is made at once."""
    without_torch()  # which is imported when it is asked for, as a baseline
    # Imports that the first request would otherwise pay for within its timeout.
    importlib.import_module("tirgemm.artifact.native")
    importlib.import_module("tirgemm.tuning.driver.tensors")
    process = _Process(channel)
    if arguments:
        description, lock_dir = arguments
        process.open_ahead(Device.from_json(json.loads(description)), Path(lock_dir))
    return process


if __name__ == "__main__":
    serve(_prepare)
