"""What ``POST /v1/kernels`` does with the database: answer from it, or submit a job for a worker."""

from __future__ import annotations

import time
from dataclasses import dataclass

from service.devices import Target, resolve, unavailable
from service.documents import KernelRequest
from service.queries import unverified_kernel
from service.settings import Settings
from service.state import ServiceState
from tirgemm.detect import check_fits
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import supporting
from tirgemm.gemm import Gemm
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.records import KernelRecord
from tuning_db import Job, JobRequest


@dataclass(frozen=True)
class Answer:
    """Either the kernel, or the job that will make it, with the fallback if there is one."""

    kernel: KernelRecord | None = None
    job: Job | None = None
    fallback: KernelRecord | None = None


def answer(state: ServiceState, body: KernelRequest) -> Answer:
    """The stored kernel, or a job that was submitted or joined.

    Raises InvalidGemm, InvalidDevice, InvalidRequest, Unsupported, DoesNotFit, and the 409 problem for a device that no
    live worker has.
    """
    gemm = Gemm.from_json(body.gemm)
    budget = _budget(state.settings, body)
    devices = _live_devices(state)
    target = resolve(body.device, devices)
    if target.device is not None:
        check_fits(gemm, target.device)
        supporting(gemm, target.device)
    known = state.store.kernel(gemm, target.key, body.regime)
    if known is not None and (known.role == "tuned" or not target.here):
        return Answer(kernel=known)
    if not target.here and not body.verify:
        cross = unverified_kernel(state.database, gemm, target.key, body.regime)
        if cross is not None:
            return Answer(kernel=cross)
    device = _workable(target, devices, verify=body.verify)
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
    job, _ = state.queue.submit(request)
    return Answer(job=job, fallback=known)


def _live_devices(state: ServiceState) -> list[Device]:
    """What the live workers have; where the server runs a worker that is still starting, it is waited for."""
    deadline = time.monotonic() + (state.settings.fallback_seconds if state.settings.worker else 0.0)
    while True:
        workers = state.queue.live_workers(state.settings.alive_seconds)
        if workers or time.monotonic() > deadline:
            return [device for worker in workers for device in worker.devices]
        time.sleep(0.1)


def progress(state: ServiceState, job_id: str) -> Answer:
    """How far a submitted job is."""
    job = state.queue.job(job_id)
    if job is None:
        raise InvalidRequest(f"job {job_id} was deleted while its answer was awaited; ask again")
    if job.status == "done" and job.kernel_id:
        return Answer(kernel=state.store.kernel_by_id(job.kernel_id), job=job)
    return Answer(job=job, fallback=state.store.kernel_by_id(job.fallback_id) if job.fallback_id else None)


def _workable(target: Target, devices: list[Device], *, verify: bool) -> Device:
    """The device to submit a job for, or the 409 that says why there can be none."""
    if target.device is None or not devices:
        raise unavailable(f"device {target.key} is with no live worker;", devices)
    if not target.here and verify:
        raise unavailable(
            f'device {target.device.name} ({target.key}) is with no live worker; "verify": false would take a build '
            "that nobody has run;",
            devices,
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
