"""``TuningEngine``: builds the fallback of a job, tunes it or cross-compiles it, with one warm workbench a device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tirgemm.artifact.sign import Signer
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import Cancelled, DeviceUnavailable
from tirgemm.events import EventHandler
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import JobRequest

if TYPE_CHECKING:
    from tirgemm.tuning.workbench import Workbench


class Engine(Protocol):
    """The working part of a worker. Methods raise TirgemmError; Cancelled soon after ``cancel`` is set."""

    def devices(self) -> list[Device]:
        """What this machine has."""
        ...

    def warm(self) -> None:
        """Get ready in the background, so that the first job need not wait."""
        ...

    def fallback(
        self, request: JobRequest, cancel: threading.Event, on_event: EventHandler | None = None
    ) -> KernelRecord:
        """The family default, built, certified and stored; a better answer that is stored already does too."""
        ...

    def tune(
        self, request: JobRequest, on_event: EventHandler, cancel: threading.Event, between_batches: Callable[[], None]
    ) -> KernelRecord:
        """The whole flow, going on from what is recorded. Returns the stored kernel."""
        ...

    def cross_compile(self, request: JobRequest, on_event: EventHandler, cancel: threading.Event) -> KernelRecord:
        """A build for a device that is not here, stored as ``unverified``."""
        ...

    def close(self) -> None:
        """End every process that was started."""
        ...


class TuningEngine:
    """The real one: ``tirgemm.tuning`` with a store."""

    def __init__(
        self, store: Store, signer: Signer, lock_dir: Path | None = None, processes: int | None = None
    ) -> None:
        self._store = store
        self._signer = signer
        self._lock_dir = lock_dir
        self._processes = processes
        self._devices = {device.key: device for device in devices()}
        self._benches: dict[str, Workbench] = {}
        # Seconds of imports that every job needs, begun while there is none.
        self._imports = threading.Thread(target=_import_tuner, name="imports", daemon=True)

    def devices(self) -> list[Device]:
        return list(self._devices.values())

    def warm(self) -> None:
        """The device that requests mean where they name none; the others' processes start with their first job."""
        best = max(self._devices.values(), key=lambda d: (d.kind == "cuda", d.units))
        self._bench(best).warm()
        self._imports.start()

    def fallback(
        self, request: JobRequest, cancel: threading.Event, on_event: EventHandler | None = None
    ) -> KernelRecord:
        self._await_imports(cancel)
        from tirgemm.tuning.set_tuning import tuning_of
        from tirgemm.tuning.tuning_task import Control

        bench = self._bench(self._present(request.device))
        return tuning_of(
            request.gemm, bench, request.regime, request.budget, seed=request.seed, control=Control(on_event, cancel)
        ).fallback()

    def tune(
        self, request: JobRequest, on_event: EventHandler, cancel: threading.Event, between_batches: Callable[[], None]
    ) -> KernelRecord:
        self._await_imports(cancel)
        from tirgemm.tuning.set_tuning import tuning_of
        from tirgemm.tuning.tuning_task import Control

        tuning = tuning_of(
            request.gemm,
            self._bench(self._present(request.device)),
            request.regime,
            request.budget,
            seed=request.seed,
            control=Control(on_event, cancel, between_batches=between_batches),
        )
        return tuning.run()

    def cross_compile(self, request: JobRequest, on_event: EventHandler, cancel: threading.Event) -> KernelRecord:
        self._await_imports(cancel)
        from tirgemm.tuning.tune import Tuning
        from tirgemm.tuning.tuning_task import Control
        from tirgemm.tuning.workbench import Workbench

        # Such jobs are rare and of many architectures: their build processes are not kept.
        named = request.device.with_(uuid="", index=0)
        with Workbench(named, self._store, self._signer, lock_dir=self._lock_dir, processes=1) as bench:
            return Tuning(
                request.gemm,
                bench,
                request.regime,
                request.budget,
                seed=request.seed,
                control=Control(on_event, cancel),
            ).cross_compile()

    def close(self) -> None:
        benches, self._benches = self._benches, {}
        for bench in benches.values():
            bench.close()

    def _await_imports(self, cancel: threading.Event) -> None:
        """Let the imports end first: two threads in one circle of imports see half-made modules."""
        while self._imports.is_alive():
            if cancel.is_set():
                raise Cancelled("stopped before the tuner was loaded")
            self._imports.join(0.05)

    def _present(self, device: Device) -> Device:
        if device.key not in self._devices:
            raise DeviceUnavailable(f"this worker has no {device.key}; it has {', '.join(self._devices)}")
        return self._devices[device.key]

    def _bench(self, device: Device) -> Workbench:
        from tirgemm.tuning.workbench import Workbench

        if device.key not in self._benches:
            self._benches[device.key] = Workbench(
                device, self._store, self._signer, lock_dir=self._lock_dir, processes=self._processes
            )
        return self._benches[device.key]


def _import_tuner() -> None:
    for name in ("tvm", "tirgemm.tuning.set_tuning"):
        import_module(name)
