"""Handling of ``POST /v1/kernels``: answer from the database, or submit a job for a worker."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tirgemm.detect import check_fits
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import supporting
from tirgemm.gemm import Gemm
from tirgemm.service.http.devices import Target, resolve, unavailable
from tirgemm.service.http.documents import KernelRequest
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.state import ServiceState
from tirgemm.service.settings import Settings
from tirgemm.service.views.queries import trials_recorded, unverified_kernel
from tirgemm.tuning.budget import Budget, covers
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Job, JobRequest


@dataclass(frozen=True)
class KernelOrJob:
    """Either the kernel, or the job that will make it, with the fallback if there is one."""

    kernel: KernelRecord | None = None
    job: Job | None = None
    fallback: KernelRecord | None = None


def answer(state: ServiceState, body: KernelRequest, *, patient: bool = True) -> KernelOrJob:
    """The stored kernel, or a job that was submitted or joined.

    A stored tuned kernel is the answer unless ``body`` names a budget that it does not cover, or asks to retune: then a
    job goes on from the records, and that kernel answers meanwhile. ``patient`` waits for a worker that is still
    starting. Raises InvalidGemm, InvalidDevice, InvalidRequest, Unsupported, DoesNotFit, and the 409 problem for a
    device that no live worker has.
    """
    gemm = Gemm.from_json(body.gemm)
    budget = _budget(state.settings, body)
    devices = _live_devices(state, state.settings.fallback_seconds if patient else 0.0)
    target = resolve(body.device, devices)
    if target.device is not None:
        check_fits(gemm, target.device)
        supporting(gemm, target.device)
    known = state.store.kernel(gemm, target.key, body.regime)
    if known is not None and not body.retune and (not target.here or _is_answer(known, body, budget)):
        return KernelOrJob(kernel=known)
    if not target.here and not body.verify and not body.retune:
        cross = unverified_kernel(state.database, gemm, target.key, body.regime)
        if cross is not None:
            return KernelOrJob(kernel=cross)
    device = _workable(target, devices, verify=body.verify)
    if body.retune:
        budget = budget.on_top_of(trials_recorded(state.store, gemm, target.key, body.regime))
    request = JobRequest(
        gemm=gemm,
        device=device,
        regime=body.regime,
        trials=budget.trials,
        seconds=budget.seconds,
        seed=body.seed,
        # A device that a worker has is always verified on.
        verify=target.here,
    )
    better_than = known.id if known is not None and known.role == "tuned" else None
    job, _ = state.queue.submit(request, fallback_id=better_than, max_queued=state.settings.max_queued)
    return KernelOrJob(job=job, fallback=known)


def _is_answer(known: KernelRecord, body: KernelRequest, budget: Budget) -> bool:
    """Whether a stored kernel does: a tuned one for whoever names no budget, else one whose search covers the
    budget."""
    named = body.budget.trials is not None or body.budget.seconds is not None
    return covers(known, budget) if named else known.role == "tuned"


def _live_devices(state: ServiceState, seconds: float) -> list[Device]:
    """What the live workers have; where the server runs a worker that is still starting, it is waited for."""
    deadline = time.monotonic() + (seconds if state.settings.worker else 0.0)
    while True:
        workers = state.queue.live_workers(state.settings.alive_seconds)
        if workers or time.monotonic() > deadline:
            return [device for worker in workers for device in worker.devices]
        time.sleep(0.1)


def progress(state: ServiceState, job_id: str) -> KernelOrJob:
    """How far a submitted job is."""
    job = state.queue.job(job_id)
    if job is None:
        raise InvalidRequest(f"job {job_id} was deleted while its answer was awaited; ask again")
    if job.status == "done":
        kernel = state.store.kernel_by_id(job.kernel_id) if job.kernel_id else None
        if kernel is None:
            raise Problem(409, f"job {job_id} is done, but its kernel was deleted; ask again", "kernel_deleted")
        return KernelOrJob(kernel=kernel, job=job)
    return KernelOrJob(job=job, fallback=state.store.kernel_by_id(job.fallback_id) if job.fallback_id else None)


def _workable(target: Target, devices: list[Device], *, verify: bool) -> Device:
    """The device to submit a job for, or the 409 that says why there can be none."""
    if target.device is None or not devices:
        raise unavailable(f"device {target.key} is with no live worker;", devices)
    if not target.here and verify:
        # What the request would have to say to be answered, as data: each kind of caller says it in its own way.
        raise unavailable(
            f"device {target.device.name} ({target.key}) is with no live worker;", devices, accepts={"verify": False}
        )
    return target.device


def _budget(settings: Settings, body: KernelRequest) -> Budget:
    trials, seconds = body.budget.trials, body.budget.seconds
    if trials is not None and trials > settings.max_trials:
        raise InvalidRequest(f"budget trials is {trials}; this service takes at most {settings.max_trials}")
    if seconds is not None and seconds > settings.max_seconds:
        raise InvalidRequest(f"budget seconds is {seconds:g}; this service takes at most {settings.max_seconds:g}")
    usual = Budget()
    return Budget(
        trials=min(usual.trials, settings.max_trials) if trials is None else trials,
        seconds=min(usual.seconds, settings.max_seconds) if seconds is None else seconds,
    )
