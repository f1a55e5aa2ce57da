"""The worker: one process a machine, all of whose devices work side by side, each on a job of its own."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from tirgemm.device import Device
from tirgemm.errors import StoreError, TirgemmError
from tirgemm.service.jobs.engine import Engine, Fleet
from tirgemm.service.jobs.heartbeat import Heartbeat
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.service.jobs.worker_names import died_here, owner_name, slot_name
from tirgemm.tuning.budget import Budget
from tirgemm.tuning_db import JobQueue, SqlStore
from tirgemm.tuning_db.queue.budget_shares import LIMIT
from tirgemm.tuning_db.queue.worker_registry import RETIRED_SECONDS

logger = logging.getLogger("tirgemm.worker")

_EVER_SECONDS = 1e9
# How often the fleet is asked for engines of devices that have come.
LOOK_SECONDS = 5.0


class _Slot:
    """An engine, and the runner and the thread in which it works."""

    def __init__(self, engine: Engine, runner: JobRunner, work: Callable[[JobRunner], None]) -> None:
        self.engine = engine
        self.runner = runner
        self.thread = threading.Thread(target=work, args=(runner,), name=f"runner {runner.name}", daemon=True)

    @property
    def ended(self) -> bool:
        return self.thread.ident is not None and not self.thread.is_alive()


class Worker:
    """Runs a JobRunner, in a thread, for every engine of the fleet, until ``stop`` is called: of those that come later,
    too, and no longer than a device is there.

    It is registered under its ``name``, each runner's leases under that and a number. ``limit`` bounds the share of a
    batch's budget that one job is given. Where work hangs, by a heartbeat of ``new_heartbeat`` for each runner, it
    keeps neither its lease nor this worker's place among those that are alive; nor is ``alive_file`` touched then.
    """

    def __init__(
        self,
        queue: JobQueue,
        store: SqlStore,
        fleet: Fleet,
        *,
        lease_s: float = 5.0,
        name: str = "",
        limit: Budget = LIMIT,
        new_heartbeat: Callable[[], Heartbeat] = Heartbeat,
        alive_file: Path | None = None,
    ) -> None:
        self.name = name or owner_name()
        self._queue = queue
        self._store = store
        self._fleet = fleet
        self._lease_s = lease_s
        self._limit = limit
        self._new_heartbeat = new_heartbeat
        self._alive_file = alive_file
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._changing = threading.Lock()
        self._slots: list[_Slot] = []
        self._numbers = itertools.count()
        self._look()

    @property
    def devices(self) -> list[Device]:
        return [device for device, _, _ in self._measured()]

    def stop(self) -> None:
        """End after releasing the running jobs, as ``JobRunner.stop``."""
        with self._changing:
            self._stop.set()
            for slot in self._slots:
                slot.runner.stop()

    def run(self) -> None:
        """Work until stopped. What a runner did not expect ends the others in good order, and is raised."""
        self._register()
        self._take_over()
        alive = threading.Thread(target=self._stay_registered, name="registration", daemon=True)
        alive.start()
        try:
            self._start_slots()
            while not self._stop.wait(LOOK_SECONDS):
                self._look()
                self._start_slots()
        finally:
            self.stop()
            for slot in self._slots:
                if slot.thread.ident is not None:
                    slot.thread.join()
            alive.join()
            self._queue.retire_worker(self.name)
        if self._failure is not None:
            raise self._failure

    def _look(self) -> None:
        """Make slots for the engines that have none, and forget those of devices that are gone."""
        try:
            engines = self._fleet.engines()
        except TirgemmError as error:
            logger.warning("the devices cannot be listed: %s: %s", error.code, error)
            return
        with self._changing:
            self._slots = [slot for slot in self._slots if not slot.ended]
            known = [slot.engine for slot in self._slots]
            for engine in engines:
                if engine in known or not engine.devices():
                    continue
                name = slot_name(self.name, next(self._numbers))
                runner = JobRunner(
                    self._queue,
                    self._store,
                    engine,
                    name,
                    lease_s=self._lease_s,
                    limit=self._limit,
                    heartbeat=self._new_heartbeat(),
                )
                self._slots.append(_Slot(engine, runner, self._run))

    def _start_slots(self) -> None:
        with self._changing:
            for slot in self._slots:
                if slot.thread.ident is None and not self._stop.is_set():
                    slot.thread.start()

    def _run(self, runner: JobRunner) -> None:
        try:
            runner.run()
        except BaseException as error:
            self._failure = error
            self.stop()

    def _take_over(self) -> None:
        """Forget workers that died on this machine, and put their jobs back: nobody keeps those leases any more. Forget
        those that ended long ago and had no other devices than this one."""
        recent = {worker.name for worker in self._queue.live_workers(RETIRED_SECONDS)}
        mine = {device.key for device in self.devices}
        for worker in self._queue.live_workers(_EVER_SECONDS):
            replaced = worker.name not in recent and mine.issuperset(device.key for device in worker.devices)
            if replaced or died_here(worker.name, self.name):
                self._queue.remove_worker(worker.name)
        for owner in self._queue.owners():
            if died_here(owner, self.name):
                for job_id in self._queue.declare_dead(owner):
                    logger.info("job %s: its worker %s is dead", job_id, owner)

    def _register(self) -> None:
        measured = self._measured()
        devices, seconds, faults = map(list, zip(*measured, strict=True)) if measured else ([], [], [])
        self._queue.register_worker(self.name, devices, measuring=seconds, faults=faults)

    def _measured(self) -> list[tuple[Device, float, str]]:
        """The devices that are there, each with the seconds for which it has been measured on, and why it cannot be
        used now, if so."""
        return [
            (device, seconds, slot.runner.fault)
            for slot in list(self._slots)
            for device, seconds in zip(slot.engine.devices(), slot.engine.measuring_seconds(), strict=False)
        ]

    def _touch(self) -> None:
        if self._alive_file is None:
            return
        try:
            self._alive_file.touch()
        except OSError as error:
            logger.warning("the file %s, which says that this worker is alive: %s", self._alive_file, error.strerror)

    def _stay_registered(self) -> None:
        while not self._stop.wait(min(self._lease_s / 2, 2.0)):
            hanging = [
                slot for slot in list(self._slots) if slot.thread.is_alive() and not slot.runner.heartbeat.check()
            ]
            if hanging:
                continue
            self._touch()
            try:
                self._register()
            except StoreError as error:
                logger.warning("registration: %s", error)
