"""The worker: one process a machine, all of whose devices work side by side, each on a job of its own."""

from __future__ import annotations

import logging
import threading

from tirgemm.device import Device
from tirgemm.errors import StoreError
from tirgemm.service.jobs.engine import Fleet
from tirgemm.service.jobs.job_runner import JobRunner
from tirgemm.service.jobs.worker_names import died_here, lane_name, owner_name
from tirgemm.tuning.budget import Budget
from tirgemm.tuning_db import JobQueue, SqlStore
from tirgemm.tuning_db.queue.budget_shares import LIMIT

logger = logging.getLogger("tirgemm.worker")

_EVER_SECONDS = 1e9


class Worker:
    """Runs a JobRunner, in a thread, for every engine of the fleet, until ``stop`` is called.

    It is registered under its ``name``, each runner's leases under that and a number. ``limit`` bounds the share of a
    batch's budget that one job is given.
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
    ) -> None:
        self.name = name or owner_name()
        self._queue = queue
        self._lease_s = lease_s
        self._engines = fleet.engines()
        self._runners = [
            JobRunner(queue, store, engine, lane_name(self.name, number), lease_s=lease_s, limit=limit)
            for number, engine in enumerate(self._engines)
        ]
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    @property
    def devices(self) -> list[Device]:
        return [device for engine in self._engines for device in engine.devices()]

    def stop(self) -> None:
        """End after releasing the running jobs, as ``JobRunner.stop``."""
        self._stop.set()
        for runner in self._runners:
            runner.stop()

    def run(self) -> None:
        """Work until stopped. What a runner did not expect ends the others in good order, and is raised."""
        self._register()
        self._take_over()
        alive = threading.Thread(target=self._stay_registered, name="registration", daemon=True)
        runners = [
            threading.Thread(target=self._run, args=(runner,), name=f"runner-{number}", daemon=True)
            for number, runner in enumerate(self._runners)
        ]
        for thread in (alive, *runners):
            thread.start()
        try:
            for thread in runners:
                thread.join()
        finally:
            self.stop()
            alive.join()
            self._queue.remove_worker(self.name)
        if self._failure is not None:
            raise self._failure

    def _run(self, runner: JobRunner) -> None:
        try:
            runner.run()
        except BaseException as error:
            self._failure = error
            self.stop()

    def _take_over(self) -> None:
        """Forget workers that died on this machine, and put their jobs back: nobody keeps those leases any more."""
        for worker in self._queue.live_workers(_EVER_SECONDS):
            if died_here(worker.name, self.name):
                self._queue.remove_worker(worker.name)
        for owner in self._queue.owners():
            if died_here(owner, self.name):
                for job_id in self._queue.declare_dead(owner):
                    logger.info("job %s: its worker %s is dead", job_id, owner)

    def _register(self) -> None:
        self._queue.register_worker(self.name, self.devices, measuring=self._measuring())

    def _measuring(self) -> list[float]:
        return [seconds for engine in self._engines for seconds in engine.measuring_seconds()]

    def _stay_registered(self) -> None:
        while not self._stop.wait(min(self._lease_s / 2, 2.0)):
            try:
                self._register()
            except StoreError as error:
                logger.warning("registration: %s", error)
