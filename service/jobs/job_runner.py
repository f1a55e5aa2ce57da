"""``JobRunner``: claims the jobs of one engine's devices, one at a time, and answers for what becomes of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress

from tirgemm._terminal.progress_view import LOG_SECONDS, LineView
from tirgemm.errors import UNUSABLE, Cancelled, DeviceUnavailable, LeaseLost, StorageFull, StoreError, TirgemmError
from tirgemm.events import EventHandler, FallbackStored, Phase, PhaseEntered
from tirgemm.progress import ProgressTracker
from tirgemm.service.jobs.engine import Engine
from tirgemm.service.jobs.event_publisher import publisher
from tirgemm.service.jobs.full_disk import FULL, FullDisk
from tirgemm.service.jobs.heartbeat import CancelEvent, Heartbeat
from tirgemm.service.jobs.job_failures import JobFailures
from tirgemm.service.jobs.lease import Lease, LeaseEnd
from tirgemm.service.jobs.new_job_watcher import NewJobWatcher
from tirgemm.service.log_lines import about_job
from tirgemm.tuning.budget import Budget, covers
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.process import spans
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Job, JobQueue, SqlStore
from tirgemm.tuning_db.queue.budget_shares import LIMIT

logger = logging.getLogger("tirgemm.worker")

# After so long without a job the engine is warmed for the first: a worker that soon ends needs none of it, and a job
# that comes soon brings it with it.
WARM_SECONDS = 15.0
STORE_PAUSE_SECONDS = 1.0
# Of a job, one after the other: then it is failed.
MAX_STORE_FAILURES = 50
# How soon a device that could not be opened is tried again: then after twice as long, and so on up to the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
# So often the device may fail one job, without a new measurement between: then the job is failed. And the jobs that
# wait for a class of which no worker has had a usable device for so long.
MAX_DEVICE_FAILURES, UNUSABLE_SECONDS = 3, 600.0
# Between two batches of a search no further fallback of a job that waits is begun after so long.
FALLBACK_SLICE_SECONDS = 2.0
# Jobs that wait and are looked at for builds that may begin ahead of their turn, and for fallbacks: more than the
# engines of one worker begin.
NEXT_JOBS, NEXT_FALLBACKS = 8, 64
# Well before the process is ended by force (``process.GRACE_SECONDS``).
HAND_BACK_SECONDS = 7.0
_INTERRUPTIONS: dict[LeaseEnd, str] = {
    "": "its lease ran out before its worker heard of it",
    "cancelled": "cancelled",
    "lost": "another worker has taken it over",
    "released": "back in the queue, as this worker stops",
}


class JobRunner:
    """Claims jobs for the engine's devices, one at a time, until ``stop`` is called.

    While one job searches, the fallbacks of newly queued ones are built between its batches, a slice of time each, and
    what the next ones will begin with is built where nothing else is. A job that is interrupted by ``stop`` goes back
    to the queue; one whose worker was killed goes on from its records under the next. What is recorded is fenced by the
    lease of the job. ``name`` is what holds the leases, ``limit`` bounds the share of a batch's budget that one job is
    given. The lease of work that hangs, by ``heartbeat``, runs out. Where the device cannot be opened, the machine
    cannot build or the disk is full, the job goes back to the queue; no more is claimed until then. ``fault`` says why.
    """

    def __init__(
        self,
        queue: JobQueue,
        store: SqlStore,
        engine: Engine,
        name: str,
        *,
        lease_s: float = 5.0,
        limit: Budget = LIMIT,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.name = name
        self._keys = [device.key for device in engine.devices()]
        self._queue = queue
        self._store = store
        self._engine = engine
        self._lease_s = lease_s
        self._limit = limit
        self.heartbeat = heartbeat or Heartbeat()
        self._stop = threading.Event()
        self._new_jobs = NewJobWatcher(queue, self._stop)
        self._lease: Lease | None = None
        self._failures = JobFailures()
        self._full_disk = FullDisk(queue.db)
        self._failed_for = ""  # the waiting job for which the device was at work when it failed
        # Why the device cannot be used now, since when by time.monotonic(), when it is tried again, and when a worker
        # last had a usable one of each class.
        self.fault = ""
        self._unusable_since = self._try_at = 0.0
        self._last_usable: dict[str, float] = {}
        self._pause_s = FIRST_PAUSE_SECONDS
        self._no_probe: threading.Event = CancelEvent(self.heartbeat)

    def stop(self) -> None:
        """End after releasing the running job.

        An engine that does not hear it for HAND_BACK_SECONDS is not waited for: its job goes back to the queue, and
        what it still writes is refused.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._no_probe.set()
        lease = self._lease
        if lease is not None:
            lease.stop("released")
            late = threading.Timer(HAND_BACK_SECONDS, self._hand_back, (lease,))
            late.daemon = True
            late.start()

    def _hand_back(self, lease: Lease) -> None:
        if self._lease is not lease:
            return
        for job_id in lease.job_ids:
            logger.warning("job %s: back in the queue, though its work does not end", job_id)
            try:
                self._queue.release(job_id, self.name)
            except StoreError as error:
                logger.error("job %s: not handed back, its lease runs out: %s", job_id, error)

    def run(self) -> None:
        """Work until stopped, or until the engine's devices are gone."""
        self.heartbeat.begin()
        warm_at = time.monotonic() + WARM_SECONDS
        while not self._stop.is_set() and self._engine.devices():
            try:
                worked = self._is_usable() and self.run_one()
            except StoreError as error:
                logger.error("the database failed: %s", error)
                if isinstance(error, StorageFull):
                    self._full_disk.met(error)
                worked = False
                self._stop.wait(1.0)
            if worked:
                warm_at = math.inf
            elif time.monotonic() < warm_at:
                self._new_jobs.wait()
            else:
                warm_at = math.inf
                self._warm()

    def _warm(self) -> None:
        try:
            self._engine.warm()
        except TirgemmError as error:
            # The first job says the same, to the one who asked for it.
            logger.warning("warming up: %s: %s", error.code, error)

    def _is_usable(self) -> bool:
        """Whether the disk has room, and the device is usable, tried again where it was not and the pause is over."""
        self.heartbeat.begin()
        if not self._full_disk.is_over():
            return False
        if not self.fault or time.monotonic() < self._try_at:
            return not self.fault
        try:
            self._engine.require_usable(self._no_probe)
        except DeviceUnavailable as error:
            self._found_unusable(error)
            self._fail_waiting()
        except Cancelled:
            return False
        except TirgemmError as error:  # another program measures on it, say: a job will wait for that
            self._found_usable(f"it answers: {error}")
        else:
            self._found_usable("it is usable again")
        return not self.fault

    def _found_unusable(self, error: TirgemmError) -> None:
        now = time.monotonic()
        if not self.fault:
            self._unusable_since, self._pause_s = now, FIRST_PAUSE_SECONDS
            self._last_usable = dict.fromkeys(self._keys, now)
        self.fault, self._try_at = str(error), now + self._pause_s
        logger.warning("no job can be done, which is tried again in %.0f s: %s", self._pause_s, error)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_SECONDS)

    def _found_usable(self, words: str) -> None:
        logger.info("no job could be done for %.0f s: %s", time.monotonic() - self._unusable_since, words)
        self.fault = ""

    def _fail_waiting(self) -> None:
        """Fail the jobs that wait for this device's class, where no worker has had a usable device of it for long."""
        workers = self._queue.live_workers(2 * self._lease_s + 1)
        for key in self._keys:
            if any(key in worker.usable_keys for worker in workers):
                self._last_usable[key] = time.monotonic()
                continue
            if time.monotonic() - self._last_usable[key] < UNUSABLE_SECONDS:
                continue
            words = f"no worker has had a usable device {key} for {UNUSABLE_SECONDS:g} s: {self.fault}"
            while not self._no_probe.is_set() and (job := self._queue.claim(self.name, [key], self._lease_s)):
                self._fail(job, DeviceUnavailable.code, words)

    def run_one(self) -> bool:
        """Claim one job and bring it to its end, if there is one."""
        self.heartbeat.begin()
        with ExitStack() as holding:
            with self._engine.claiming():
                job = self._queue.claim(self.name, self._keys, self._lease_s, unverified=True, limit=self._limit)
                if job is None:
                    return False
                holding.enter_context(self._engine.holding(job.request))
            self._run_claimed(job)
        return True

    def _run_claimed(self, job: Job) -> None:
        held = Lease(self._queue, job.id, self.name, self._lease_s, self.heartbeat)
        with held as lease, self._store.fenced(job.id, self.name):
            self._lease = lease
            if self._stop.is_set():
                lease.stop("released")
            try:
                with about_job(job.id):
                    self._work(job, lease)
            finally:
                self._lease = None

    def _work(self, job: Job, lease: Lease) -> None:
        self._failed_for = ""
        again = f", attempt {job.attempts}" if job.attempts > 1 else ""
        logger.info("job %s: tuning %s on %s%s", job.id, job.request.gemm, job.request.device.key, again)
        view = LineView(ProgressTracker(), lambda line: logger.info("job %s: %s", job.id, line), interval=LOG_SECONDS)
        try:
            with spans.under(job.traceparent), spans.span("job", job=job.id, gemm=str(job.request.gemm)):
                kernel = self._answer(job, lease, view)
        except Cancelled:
            self._interrupted(job, lease)
        except StoreError as error:
            self._store_failed(job, error)
        except UNUSABLE as error:
            if not self._lost(job, error):
                self._device_failed(job, error)
        except TirgemmError as error:
            if not self._lost(job, error):
                self._fail(job, error.code, str(error))
        except Exception as error:
            if not self._lost(job, error):
                logger.exception("job %s: failed", job.id)
                words = f"internal_error: {type(error).__name__}: {error}"
                self._queue.finish(job.id, self.name, "failed", error=words)
        else:
            standing = view.tracker.progress.standing
            logger.info("job %s: done, kernel %s%s", job.id, kernel, f", {standing}" if standing else "")
            self._queue.finish(job.id, self.name, "done", kernel_id=kernel)
            self._full_disk.written()

    def _fail(self, job: Job, code: str, words: str) -> None:
        logger.warning("job %s: failed: %s: %s", job.id, code, words)
        self._failures.forget(job.id)  # lest one that is put back fails at once
        self._queue.finish(job.id, self.name, "failed", error=f"{code}: {words}")

    def _lost(self, job: Job, error: Exception) -> bool:
        """Whether the engine's devices are gone, which says nothing of the job: it is back in the queue then."""
        if self._engine.devices():
            return False
        logger.warning("job %s: back in the queue, its device is lost: %s: %s", job.id, type(error).__name__, error)
        self._queue.release(job.id, self.name)
        return True

    def _device_failed(self, job: Job, error: TirgemmError) -> None:
        """That, or that this machine cannot build, says nothing of the job, which waits for this device or another;
        unless it fails each time. It counts against the job for which the device was at work."""
        self._found_unusable(error)
        failed_for = self._failed_for or job.id
        self._failures.of_device[failed_for] = count = self._failures.of_device[failed_for] + 1
        if count >= MAX_DEVICE_FAILURES and failed_for != job.id:
            self._failures.hopeless.add(failed_for)
        elif count >= MAX_DEVICE_FAILURES:
            what = "device" if isinstance(error, DeviceUnavailable) else "machine"
            words = f"the {what} failed {count} times in a row, without a measurement between: {error}"
            self._fail(job, error.code, words)
            return
        logger.warning("job %s: back in the queue: %s: %s", job.id, error.code, error)
        with suppress(LeaseLost):
            self._queue.add_event(job.id, PhaseEntered(phase=Phase.WAITING, detail=f"for a device: {error}"), self.name)
        self._queue.release(job.id, self.name)

    def _store_failed(self, job: Job, error: StoreError) -> None:
        """A database that does not answer may answer again, and a full disk have room: the job waits for it."""
        self._failures.of_store[job.id] += int(not isinstance(error, StorageFull))
        if self._failures.of_store[job.id] > MAX_STORE_FAILURES:
            self._fail(job, error.code, str(error))
            return
        logger.warning("job %s: back in the queue: %s: %s", job.id, error.code, error)
        if isinstance(error, StorageFull):
            self._full_disk.met(error)
            with suppress(StoreError, LeaseLost):
                self._queue.add_event(job.id, FULL, self.name)
        else:
            self._stop.wait(STORE_PAUSE_SECONDS)
        self._queue.release(job.id, self.name)

    def _interrupted(self, job: Job, lease: Lease) -> None:
        logger.info("job %s: %s", job.id, _INTERRUPTIONS[lease.reason])
        if lease.reason == "cancelled":
            self._queue.finish(job.id, self.name, "cancelled")
            self._warm()  # the measuring process that was killed with the job: the next one finds it ready
        elif lease.reason == "released":
            self._queue.release(job.id, self.name)

    def _answer(self, job: Job, lease: Lease, view: LineView) -> str:
        """The id of the kernel that the job ends with; ``view`` tells the log how far it is."""
        request = job.request
        self._failures.forget_ended(self._queue)
        on_event = publisher(self._queue, job.id, self.name, view, self._failures)
        if request.device.key not in self._keys:
            return self._engine.cross_compile(request, on_event, lease.cancel).id
        known = self._store.kernel(
            request.gemm, request.device.key, request.regime, other_devices=request.other_devices
        )
        # What the job is to improve is its fallback. Any other kernel that covers it was stored since: by a worker that
        # was killed before it could finish the job, or for another request; or it is of shipped records, which were
        # looked into while the job waited.
        stored = known is not None and self._store.has_blob(known.artifact_sha256)
        improves = known is not None and (known.shipped or known.id != job.fallback_id)
        if known is not None and stored and improves and covers(known, request.budget):
            return known.id
        if not job.fallback_id:
            self._prepare_waiting(job)
            fallback = self._build_fallback(job, lease.cancel, on_event)
            if (fallback.shipped or request.effort is Effort.NONE) and covers(fallback, request.budget):
                return fallback.id
        return self._engine.tune(request, on_event, lease.cancel, lambda: self._serve_waiting(lease)).id

    def _serve_waiting(self, lease: Lease) -> None:
        """What is done for the jobs that wait, between two batches of the one that runs under ``lease``: what comes
        next is prepared, and for a slice of time fallbacks are made. Where the engine builds ahead the device
        waits for the build of one of them at most; of the others' those are made that are built."""
        deadline, made = time.monotonic() + FALLBACK_SLICE_SECONDS, False
        try:
            while not lease.cancel.is_set() and not (made and time.monotonic() >= deadline):
                built = self._prepare_waiting()
                job = self._claim_fallback(built) if built else None
                if job is None and not made:
                    job = self._claim_fallback()
                if job is None:
                    return
                self._build_waiting(job, lease)
                made = True
        except StoreError as error:
            logger.warning("the jobs that wait: %s: %s", error.code, error)

    def _claim_fallback(self, only: Collection[str] | None = None) -> Job | None:
        return self._queue.claim_fallback(self.name, self._keys, self._lease_s, self._failures.hopeless, only)

    def _prepare_waiting(self, *begun: Job) -> list[str]:
        """Have the engine begin what the next jobs begin with, and where some wait that of those ``begun``, too: a job
        that is alone leaves all processors to its fallback. Returns the waiting jobs whose fallback is built."""
        try:
            waiting = self._queue.upcoming(self._keys, NEXT_JOBS)
            bare = self._queue.upcoming(self._keys, NEXT_FALLBACKS, bare=True, skip=self._failures.hopeless)
            first = begun if waiting else ()
            next_ones, fallbacks = ([job.request for job in (*first, *jobs)] for jobs in (waiting, bare))
            built = set(self._engine.prepare(next_ones, fallbacks))
            return [job.id for job in bare if job.request in built]
        except StoreError as error:
            logger.warning("the jobs that wait: %s: %s", error.code, error)
        except Exception:  # of another job, which will say so itself
            logger.exception("the jobs that wait: nothing is prepared for them")
        return []

    def _build_waiting(self, job: Job, lease: Lease) -> None:
        with (
            Lease(self._queue, job.id, self.name, self._lease_s, self.heartbeat, within=lease) as mine,
            self._store.fenced(job.id, self.name),
        ):
            try:
                with spans.under(job.traceparent), spans.span("waiting job", job=job.id, gemm=str(job.request.gemm)):
                    self._build_fallback(job, mine.cancel)
            except Cancelled:
                logger.info("job %s, which waits: its default kernel was interrupted", job.id)
            except (StoreError, *UNUSABLE) as error:  # the running job cannot go on with the latter either
                self._failed_for = "" if isinstance(error, StoreError) else job.id
                raise
            except TirgemmError as error:
                # The job itself will fail with this when its turn comes; until then it is not tried at every batch.
                self._failures.hopeless.add(job.id)
                logger.warning("job %s, which waits: its default kernel failed: %s: %s", job.id, error.code, error)
            except Exception:
                self._failures.hopeless.add(job.id)
                logger.exception("job %s, which waits: its default kernel failed", job.id)
            finally:
                self._queue.release(job.id, self.name)

    def _build_fallback(self, job: Job, cancel: threading.Event, on_event: EventHandler | None = None) -> KernelRecord:
        kernel = self._engine.fallback(job.request, cancel, on_event)
        self._queue.set_fallback(job.id, kernel.id)
        stored = FallbackStored(kernel=kernel.id, role=kernel.role, config=str(kernel.config), timings=kernel.timings)
        self._queue.add_event(job.id, stored)
        return kernel
