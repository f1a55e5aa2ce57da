"""``TuningEngine``: builds the fallback of a job, tunes it or cross-compiles it, on one device's warm workbench."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from tirgemm.device import Device
from tirgemm.errors import Cancelled, DeviceUnavailable, StoreError, TirgemmError
from tirgemm.events import EventHandler
from tirgemm.tuning.process.child_rpc import allow_torch, without_torch
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import JobRequest

if TYPE_CHECKING:
    from tirgemm.config import Config
    from tirgemm.tuning.build.prepared import PreparedBuilds, Purpose
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.tune import Tuning
    from tirgemm.tuning.workbench import Workbench

# Fallbacks of waiting jobs that are built ahead for each device: as many as it verifies and times while one is built.
FALLBACKS_AHEAD = 8


class Engine(Protocol):
    """What a job is run on: one at a time. Methods raise TirgemmError; Cancelled soon after ``cancel`` is set."""

    def devices(self) -> list[Device]:
        """The devices whose jobs it runs: the same for its life, or none any more once they are gone."""
        ...

    def measuring_seconds(self) -> list[float]:
        """For how long each of them has been measured on since the start."""
        ...

    def warm(self) -> None:
        """Get ready in the background, so that the next job need not wait: for what was never started, or was killed
        with the last job, on this device or on one that helped."""
        ...

    def require_usable(self, cancel: threading.Event) -> None:
        """Open the device, which could not be opened before. Raises DeviceUnavailable where it still cannot."""
        ...

    def prepare(self, waiting: Sequence[JobRequest], bare: Sequence[JobRequest]) -> list[JobRequest]:
        """Begin what the first of the jobs that wait will begin with, and the fallbacks of the first of those that are
        ``bare`` of one, in processes that nothing else is to be built by. Returns those of ``bare`` whose fallback is
        built; where nothing is begun ahead all of them, since none is worth waiting for."""
        ...

    def claiming(self) -> AbstractContextManager[None]:
        """Within the block a job is claimed, and held if there is one: nothing that was prepared is given up, for the
        job waits no longer and is not held yet."""
        ...

    def holding(self, request: JobRequest) -> AbstractContextManager[None]:
        """Within the block this job runs: what was prepared for it is kept, and what is left is given up behind it."""
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


class Fleet(Protocol):
    """The engines of one worker, which work side by side."""

    def engines(self) -> Sequence[Engine]:
        """Those of the devices that are there now, the same objects as before for the same devices."""
        ...

    def close(self) -> None:
        """End every process that was started."""
        ...


class TunerImports:
    """Seconds of imports that every job needs, begun while there is none: first what a fallback takes, then TVM."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="imports", daemon=True)
        self._starting = threading.Lock()
        self._tuner = threading.Event()

    def start(self) -> None:
        """Begin them in the background, if nobody has."""
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()

    def wait(self, cancel: threading.Event, *, tvm: bool) -> None:
        """Let them end first, those of TVM where it is needed: two threads in one circle of imports see half-made
        modules. Raises Cancelled."""
        self.start()
        while self._thread.is_alive() and (tvm or not self._tuner.is_set()):
            if cancel.is_set():
                raise Cancelled("stopped before the tuner was loaded")
            if tvm:
                self._thread.join(0.05)
            else:
                self._tuner.wait(0.05)

    def _run(self) -> None:
        without_torch()  # which tvm_ffi would import, in seconds and for nothing
        try:
            import_module("tirgemm.tuning.set_tuning")
            self._tuner.set()
            import_module("tvm")
        finally:
            allow_torch()


def _purpose(stage: str, request: JobRequest) -> Purpose:
    return request.gemm, f"{stage} {request.live_key}"


def _default_of(tuning: Tuning) -> list[Config]:
    return tuning.default_ahead()


def _openings_of(tuning: Tuning) -> list[Config]:
    return tuning.openings()


class TuningEngine:
    """The real one: ``tirgemm.tuning`` on one device. ``open_bench`` makes the workbench of a device, at its first job
    or when the engine is warmed. A search uses those of ``siblings``, the engines of its fleet, that have a device of
    the same key and no work of their own. ``prepared`` builds for jobs that wait, for all engines of that key."""

    def __init__(
        self,
        device: Device,
        open_bench: Callable[[Device], Workbench],
        imports: TunerImports,
        siblings: Callable[[], Iterable[TuningEngine]] = tuple,
        prepared: PreparedBuilds | None = None,
    ) -> None:
        self._device = device
        self._open_bench = open_bench
        self._imports = imports
        self._siblings = siblings
        self._prepared = prepared
        self._opened: Workbench | None = None
        self._working = False

    def devices(self) -> list[Device]:
        return [self._device]

    def measuring_seconds(self) -> list[float]:
        measurer = self._opened.measurer if self._opened is not None else None
        return [measurer.seconds if measurer is not None else 0.0]

    def warm(self) -> None:
        self._bench().warm()
        for helper in self._helpers():
            helper.warm()
        self._imports.start()

    def require_usable(self, cancel: threading.Event) -> None:
        measurer = self._bench().measurer
        if measurer is not None:
            measurer.require_usable(cancel)

    def prepare(self, waiting: Sequence[JobRequest], bare: Sequence[JobRequest]) -> list[JobRequest]:
        if self._prepared is None or self._opened is None:
            return list(bare)
        count = 1 + len(self._alike())  # devices, of which any may take any of the jobs
        fallbacks = {_purpose("fallback", request): request for request in self._mine(bare)[: FALLBACKS_AHEAD * count]}
        openings = {_purpose("opening", request): request for request in self._mine(waiting)[:count]}
        self._prepared.prepare(
            {purpose: partial(self._first, request, _default_of) for purpose, request in fallbacks.items()}
            | {purpose: partial(self._first, request, _openings_of) for purpose, request in openings.items()}
        )
        return [request for purpose, request in fallbacks.items() if self._prepared.built(purpose)]

    def claiming(self) -> AbstractContextManager[None]:
        return nullcontext() if self._prepared is None else self._prepared.kept()

    def holding(self, request: JobRequest) -> AbstractContextManager[None]:
        return nullcontext() if self._prepared is None else self._prepared.held(request.gemm)

    def _mine(self, requests: Sequence[JobRequest]) -> list[JobRequest]:
        return [request for request in requests if request.device.key == self._device.key]

    def _first(self, request: JobRequest, of: Callable[[Tuning], list[Config]]) -> list[Config]:
        try:
            return of(self._tuning(request, threading.Event(), None, tvm=True))
        except StoreError:
            raise
        except TirgemmError:  # as the job itself will say, to the one who asked for it
            return []

    def fallback(
        self, request: JobRequest, cancel: threading.Event, on_event: EventHandler | None = None
    ) -> KernelRecord:
        with self._at_work():
            return self._tuning(request, cancel, on_event, tvm=False).fallback()

    def tune(
        self, request: JobRequest, on_event: EventHandler, cancel: threading.Event, between_batches: Callable[[], None]
    ) -> KernelRecord:
        with self._at_work():
            return self._tuning(request, cancel, on_event, between_batches, tvm=True).run()

    def cross_compile(self, request: JobRequest, on_event: EventHandler, cancel: threading.Event) -> KernelRecord:
        self._imports.wait(cancel, tvm=True)
        from tirgemm.tuning.tune import Tuning
        from tirgemm.tuning.tuning_task import Control

        control = Control(on_event, cancel)
        with self._open_bench(request.device.with_(uuid="", index=0)) as bench:
            return Tuning(
                request.gemm, bench, request.regime, request.budget, seed=request.seed, control=control
            ).cross_compile()

    def close(self) -> None:
        """End the processes that it does not share."""
        bench, self._opened = self._opened, None
        if bench is not None:
            bench.close()

    def _tuning(
        self,
        request: JobRequest,
        cancel: threading.Event,
        on_event: EventHandler | None,
        between_batches: Callable[[], None] | None = None,
        *,
        tvm: bool,
    ) -> Tuning:
        bench = self._bench()  # whose processes import what they need beside this one
        self._imports.wait(cancel, tvm=tvm)
        from tirgemm.tuning.set_tuning import tuning_class
        from tirgemm.tuning.tuning_task import Control

        if request.device.key != self._device.key:
            raise DeviceUnavailable(f"this engine has {self._device.key}, not {request.device.key}")
        control = Control(on_event, cancel, between_batches=between_batches)
        return tuning_class(request.gemm)(
            request.gemm,
            bench,
            request.regime,
            request.budget,
            seed=request.seed,
            control=control,
            other_devices=request.other_devices,
        )

    def _bench(self) -> Workbench:
        if self._opened is None:
            bench = self._open_bench(self._device)
            bench.helpers, bench.prepared = self._helpers, self._prepared
            self._opened = bench
            bench.warm()
        return self._opened

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The block is work on this engine's device, which is not lent meanwhile."""
        working, self._working = self._working, True
        try:
            yield
        finally:
            self._working = working

    def _helpers(self) -> list[Measurer]:
        """The measuring processes of idle devices of the same key."""
        return [measurer for engine in self._alike() if (measurer := engine.lent()) is not None]

    def _alike(self) -> list[TuningEngine]:
        """The other engines of devices of the same key."""
        key = self._device.key
        return [e for e in self._siblings() if e is not self and any(device.key == key for device in e.devices())]

    def lent(self) -> Measurer | None:
        """This engine's measuring process, where it is warm, usable and has no work; what it is asked for meanwhile
        waits for the one request that it is lent for."""
        measurer = self._opened.measurer if self._opened is not None and not self._working else None
        return None if measurer is None or measurer.unusable else measurer
