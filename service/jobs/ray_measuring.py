"""Measuring processes on the nodes of a Ray cluster: actors that own a GPU, or measure on their node's CPU."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.errors import Cancelled, DeviceUnavailable, TirgemmError
from tirgemm.tuning.measure.measurer import MeasuringProcess, measuring_child
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.child_rpc import ChildDied, ChildTimedOut
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.process.locks import OnWait

_LOOK_SECONDS = 0.05
# How often a node is asked what it waits for.
_WAIT_LOOK_SECONDS = 0.5
# How long a node is given to stop what it measures.
_CANCEL_SECONDS = 10.0


class DeviceActor:
    """One device of a node, and its measuring process, which dies with this actor."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._child: MeasuringProcess | None = None
        self._starting = threading.Lock()
        self._cancel = threading.Event()
        self._waits_for = ""

    def device(self) -> Device | None:
        """The device that this actor owns: the one GPU that it may see, or the CPU."""
        return next((device for device in devices() if device.kind == self._kind), None)

    def warm(self, device: Device, lock_dir: Path) -> None:
        """Start the measuring process and its imports, where there is none."""
        self._measuring(device, lock_dir)

    def _measuring(self, device: Device, lock_dir: Path) -> MeasuringProcess:
        with self._starting:
            if self._child is None or not self._child.alive:
                if self._child is not None:
                    self._child.kill()
                self._child = measuring_child(device, lock_dir)
            return self._child

    def request(
        self, device: Device, lock_dir: Path, message: Any, timeout_s: float, trace: str | None
    ) -> tuple[Any, float, list[spans.ChildSpan]]:
        """The measuring process's answer, or the error that it ended with, the seconds for which it has worked, and its
        spans, where ``trace`` asks for them."""
        self._cancel.clear()
        child = self._measuring(device, lock_dir)
        before = child.busy_s
        outcome: Any
        try:
            with spans.relayed(trace) as recorded:
                outcome = child.request(message, timeout_s=timeout_s, cancel=self._cancel, on_wait=self._wait)
        except TirgemmError as error:
            outcome = error
        except ChildDied as error:
            outcome = partial(ChildDied, error.cause, error.output)  # which can be pickled
        except ChildTimedOut as error:
            outcome = partial(ChildTimedOut, error.started)
        finally:
            self._waits_for = ""
        return outcome, child.busy_s - before, recorded

    def _wait(self, reason: str) -> None:
        self._waits_for = reason

    def waits_for(self) -> str:
        """What the request that is under way waits for, in plain words; "" where it does not. Called beside it."""
        return self._waits_for

    def cancel(self) -> None:
        """Stop the request that is under way; called beside it."""
        self._cancel.set()


_REMOTE: Any = ray.remote(DeviceActor)


class NodeDevice:
    """The actor of a device of that kind on a node; it is started at once, and has its ``device`` once it is ready."""

    def __init__(self, node_id: str, kind: str) -> None:
        self.node_id = node_id
        self.kind = kind
        self.lost = False
        self._device: Device | None = None
        self._actor = _REMOTE.options(
            num_cpus=0,
            num_gpus=int(kind == "cuda"),
            max_restarts=0,
            max_concurrency=3,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(kind)
        self._told = self._actor.device.remote()

    def wait(self, timeout_s: float) -> None:
        """Wait at most so long for it to be ready."""
        ray.wait([self._told], timeout=timeout_s)

    def ready(self) -> bool:
        """Whether it has its device. Raises DeviceUnavailable where the node has none."""
        if self._device is None and ray.wait([self._told], timeout=0)[0]:
            try:
                self._device = ray.get(self._told)
            except RayError as error:
                raise self._unavailable(error) from error
            if self._device is None:
                raise DeviceUnavailable(f"node {self.node_id} of the Ray cluster shows no {self.kind} device")
        return self._device is not None

    @property
    def device(self) -> Device:
        """The device, once ``ready``."""
        assert self._device is not None
        return self._device

    def warm(self, lock_dir: Path) -> None:
        """Have the measuring process started beside whatever else happens; returns at once."""
        self._actor.warm.remote(self.device, lock_dir)

    def ask(
        self, lock_dir: Path, message: Any, timeout_s: float, cancel: Flag | None, on_wait: OnWait | None
    ) -> tuple[Any, float]:
        """The first two that ``DeviceActor.request`` answers, its spans made part of the trace; ``on_wait`` is told
        what it waits for. Raises Cancelled, the measuring process killed then, and DeviceUnavailable once the node is
        lost."""
        told, looked = "", time.monotonic()
        asked: Any = None
        try:
            reference = self._actor.request.remote(self.device, lock_dir, message, timeout_s, spans.traceparent())
            while not ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
                if cancel is not None and cancel.is_set():
                    self._actor.cancel.remote()
                    ray.wait([reference], timeout=_CANCEL_SECONDS)
                    raise Cancelled("cancelled while a node was measuring; its measuring process was stopped")
                if on_wait is None:
                    continue
                if asked is None and time.monotonic() - looked >= _WAIT_LOOK_SECONDS:
                    asked = self._actor.waits_for.remote()
                if asked is not None and ray.wait([asked], timeout=0)[0]:
                    reason, asked, looked = ray.get(asked), None, time.monotonic()
                    if reason != told:
                        told = reason
                        on_wait(reason)
            outcome, busy_s, recorded = ray.get(reference)
        except RayError as error:
            self.lost = True
            raise self._unavailable(error) from error
        if recorded:
            spans.adopt(recorded)
        return outcome, busy_s

    def close(self) -> None:
        """End the actor and its measuring process."""
        self.lost = True
        ray.kill(self._actor)

    def _unavailable(self, error: RayError) -> DeviceUnavailable:
        return DeviceUnavailable(
            f"node {self.node_id} of the Ray cluster has lost its {self.kind} device: {error!r:.200}"
        )


class RemoteMeasuring:
    """The measuring process of a node's device, as ``Measurer`` sees it: started with this, as that of a host is."""

    def __init__(self, place: NodeDevice, lock_dir: Path) -> None:
        self._place = place
        self._lock_dir = lock_dir
        self.busy_s = 0.0
        place.warm(lock_dir)

    @property
    def alive(self) -> bool:
        return not self._place.lost

    def request(
        self, message: Any, *, timeout_s: float, cancel: Flag | None = None, on_wait: OnWait | None = None
    ) -> Any:
        """As ``ChildProcess.request``. Raises DeviceUnavailable too."""
        outcome, busy_s = self._place.ask(self._lock_dir, message, timeout_s, cancel, on_wait)
        self.busy_s += busy_s
        if isinstance(outcome, partial):
            raise outcome()
        if isinstance(outcome, TirgemmError):
            raise outcome
        return outcome

    def kill(self) -> None:
        """Nothing: the actor lives as long as its engine, and replaces a process that died."""
