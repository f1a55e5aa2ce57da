"""``RayBuilds``: builds as tasks on the processors of a Ray cluster, those of a lost node begun anew on another."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, TirgemmError
from tirgemm.families import Registration, register_registered, registered
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.build.processes import Build
from tirgemm.tuning.process import spans

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

# How often a build is begun anew where its node is lost.
RETRIES = 3
_LOOK_SECONDS = 0.05


class RayBuilds:
    """Compiles for every device of a cluster, a processor a build. A build that crashes its process is a failed one, as
    on this host; one whose node or worker is lost is begun anew, at most RETRIES times."""

    def __init__(self, lock_dir: Path | None = None) -> None:
        self._lock_dir = lock_dir
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(_compile)
        self._running: dict[Any, Build] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._watching = threading.Thread(target=self._watch, name="ray-builds", daemon=True)
        self._watching.start()

    @property
    def count(self) -> int:
        return int(ray.cluster_resources().get("CPU", 1))

    def warm(self) -> None:
        """Nothing: Ray keeps its processes for the next task."""

    def submit(self, asker: Hashable, build: Build) -> None:
        """Compile on any node that has a processor free; tasks begin in the order in which Ray takes them."""
        del asker
        with self._changed:
            if self._closed:
                raise BuildFailed("the build pool is closed")
            reference = self._task.remote(
                build.gemm, build.config, build.device, build.timeout_s, registered(), self._lock_dir, build.trace
            )
            self._running[reference] = build
            self._changed.notify()

    def close(self) -> None:
        """Cancel what waits and what builds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._watching.join()

    def _watch(self) -> None:
        """Hand out what has ended, and cancel what was given up."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running or self._closed)
                running, closed = dict(self._running), self._closed
            for reference, build in list(running.items()):
                if closed or build.given_up.is_set() or build.future.cancelled():
                    self._give_up(reference, running.pop(reference))
            if closed:
                return
            if running:
                done, _ = ray.wait(list(running), num_returns=len(running), timeout=_LOOK_SECONDS)
                for reference in done:
                    self._answer(reference, running[reference])

    def _give_up(self, reference: Any, build: Build) -> None:
        ray.cancel(reference, force=True)
        self._forget(reference)
        build.future.cancel()
        build.future.set_running_or_notify_cancel()

    def _answer(self, reference: Any, build: Build) -> None:
        self._forget(reference)
        if not build.future.set_running_or_notify_cancel():
            return
        outcome: Binary | TirgemmError
        try:
            outcome, recorded = ray.get(reference)
        except RayError as error:
            outcome, recorded = BuildFailed(f"the build was lost with its node: {type(error).__name__}"), []
        if recorded:
            with spans.under(build.trace):
                spans.adopt(recorded)
        if isinstance(outcome, TirgemmError):
            build.future.set_exception(outcome)
        else:
            build.future.set_result(outcome)

    def _forget(self, reference: Any) -> None:
        with self._changed:
            del self._running[reference]


_pools: dict[str, BuildPool] = {}


def _compile(
    gemm: Gemm,
    config: Config,
    device: Device,
    timeout_s: float,
    registrations: tuple[Registration, ...],
    lock_dir: Path | None,
    trace: str | None,
) -> tuple[Binary | TirgemmError, list[spans.ChildSpan]]:
    """The build of a config, or what became of it, by a build process of this worker of Ray's: one that is kept, and
    that compilers may crash. With its spans, where ``trace`` asks for them."""
    register_registered(registrations)
    if device.key not in _pools:
        for key in list(_pools):
            _pools.pop(key).close()
        _pools[device.key] = BuildPool(device, 1, lock_dir=lock_dir, timeout_s=timeout_s)
    with spans.relayed(trace) as recorded:
        try:
            return _pools[device.key].submit(gemm, config).result(), recorded
        except TirgemmError as error:
            return error, recorded
