"""Handling of ``POST /v1/kernels``: answer from the database, or submit a job for a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tirgemm.detect import check_fits
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, QueueFull, QuotaExceeded, StorageFull, StoreError, StoreUnavailable
from tirgemm.families import supporting
from tirgemm.gemm import Gemm, Regime
from tirgemm.service.http.devices import Target, resolve, unavailable
from tirgemm.service.http.kernel_cache.known_answers import KnownAnswer
from tirgemm.service.http.kernel_cache.snapshot_cache import EVER_SECONDS
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.request_bodies import KernelRequest
from tirgemm.service.http.state import ServiceState
from tirgemm.service.settings import Settings
from tirgemm.service.views.queries import trials_recorded, unverified_kernel
from tirgemm.tuning.budget import Budget, effort_of, search_covers
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Job, JobRequest
from tirgemm.tuning_db.access.quotas import Asker
from tirgemm.tuning_db.answers.kernel_document import repair_document
from tirgemm.tuning_db.answers.stored_answers import StoredAnswer, WantedAnswer
from tirgemm.tuning_db.job_values import Window
from tirgemm.tuning_db.revoked_artifacts import revocation, revoked_names
from tirgemm.tuning_db.upkeep.pins import set_pinned

logger = logging.getLogger("tirgemm.service")


@dataclass(frozen=True)
class KernelOrJob:
    """Either the kernel, or the job that will make it, with the fallback if there is one."""

    kernel: KernelRecord | None = None
    job: Job | None = None
    fallback: KernelRecord | None = None


def answer(
    state: ServiceState,
    body: KernelRequest,
    *,
    patient: bool = True,
    asker: Asker | None = None,
    job_id: str | None = None,
) -> KernelOrJob | None:
    """The stored kernel, or a job that was submitted or joined. It never waits.

    ``job_id`` is what a new job is to be called: where there is one of that name, this request made it before, and it
    is the answer.

    A stored tuned kernel is the answer, whatever the workers do, unless ``body`` asks for more effort than it was tuned
    with, names a budget that it does not cover, or asks to retune: then a job goes on from the records, and that kernel
    answers meanwhile. One whose search was interrupted is the answer too, and a job goes on with it. ``patient``: None
    where no worker is alive, for what a worker that is still starting could do better. ``asker``: the API key that a
    new job counts against. Raises InvalidGemm, InvalidDevice, InvalidRequest, Unsupported, DoesNotFit, QueueFull,
    QuotaExceeded, and the 409 problem for a device that no live worker has.
    """
    if job_id is not None and state.queue.job(job_id) is not None:
        return progress(state, job_id)
    gemm = Gemm.from_json(body.gemm)
    budget = _budget(state.settings, body)
    # Where nothing can be written workers cannot say that they live, and no job can go on with what is known; a new
    # problem is refused when its job is stored.
    writable = state.database.writable
    devices = devices_seen(state, state.settings.alive_seconds)
    if not devices and not writable:
        devices = devices_seen(state, EVER_SECONDS)
    target = target_of(body.device, devices or devices_seen(state, EVER_SECONDS), wait=patient and not devices)
    if target is None:
        return None
    here = target.here and bool(devices)
    goes_on = here and writable
    if target.device is not None:
        check_fits(gemm, target.device)
        supporting(gemm, target.device)
    known = known_kernel(state, gemm, target.key, body.regime, other_devices=body.other_devices)
    if known is not None and not body.retune and _is_answer(known, body, budget):
        resumed = None
        if known.interrupted and goes_on and target.device is not None:
            resumed = _resume(
                state,
                known,
                job_request(body, gemm, target.device, budget, verify=True),
                asker,
            )
        return KernelOrJob(kernel=known, job=resumed)
    if not devices and patient:
        return None
    if known is not None and not body.retune and not goes_on:
        return KernelOrJob(kernel=known)
    if not goes_on and not body.verify and not body.retune:
        cross = _whole(state, unverified_kernel(state.database, gemm, target.key, body.regime))
        if cross is not None:
            return KernelOrJob(kernel=cross)
    if not devices:
        state.database.require_writable()  # no worker can say that it lives while others write
    device = workable(replace(target, here=here), devices, verify=body.verify)
    if body.retune:
        budget = budget.on_top_of(trials_recorded(state.store, gemm, target.key, body.regime))
    # A device that a worker has is always verified on.
    request = job_request(body, gemm, device, budget, verify=here)
    better_than = known.id if known is not None and known.role == "tuned" else None
    limit = state.settings.max_queued
    job, _ = state.queue.submit(request, better_than, max_queued=limit, asker=asker, job_id=job_id)
    return KernelOrJob(job=job, fallback=known)


async def stored_answer(state: ServiceState, body: KernelRequest, devices: Sequence[Device]) -> KnownAnswer | None:
    """The answer that ``answer`` would give, where nothing but the store need be asked; ``devices`` are those that
    workers have, as was seen of late. Raises InvalidGemm, InvalidDevice, InvalidRequest and StoreError."""
    budget = _budget(state.settings, body)
    target = target_of(body.device, devices, wait=True)
    if target is None or body.retune:
        return None
    # What is stored is a problem: to look the text up takes less time than to parse it.
    text = body.gemm if isinstance(body.gemm, str) else str(Gemm.from_json(body.gemm))
    wanted = WantedAnswer(text, target.key, body.regime, body.other_devices)
    stored = await state.lookups.find(wanted)
    if stored is None and (canonical := str(Gemm.from_json(body.gemm))) != text:
        stored = await state.lookups.find(wanted._replace(gemm=canonical))
    if stored is None or not state.store.has_blob(stored.artifact_sha256):
        return None
    database, artifact_sha256 = state.database, stored.artifact_sha256
    revoked = await asyncio.to_thread(revocation, database, artifact_sha256) if revoked_names(database) else ""
    if revoked:
        return None
    if stored.document is None:
        return await asyncio.to_thread(_rendered_answer, state, body, budget, stored.kernel_id)
    if stored.interrupted or not _is_answer(stored, body, budget):
        return None
    return KnownAnswer(stored.document, stored.kernel_id, stored.artifact_sha256, body.queue.priority)


def _rendered_answer(state: ServiceState, body: KernelRequest, budget: Budget, kernel_id: str) -> KnownAnswer | None:
    """The answer that is this kernel, rendered now, because its document is not stored or is damaged."""
    record = state.store.kernel_by_id(kernel_id)
    if record is None:
        return None
    with suppress(StoreError):
        repair_document(state.database, record)
    if record.interrupted or not _is_answer(record, body, budget):
        return None
    return answer_of(state, body, record)


def answer_of(state: ServiceState, body: KernelRequest, record: KernelRecord) -> KnownAnswer:
    """The answer to ``body`` that is this kernel."""
    return KnownAnswer(state.documents.of(record), record.id, record.artifact_sha256, body.queue.priority)


def unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of these members. Raises the 400 problem for a name that is there twice."""
    made: dict[str, Any] = {}
    for name, value in members:
        if name in made:
            detail = f"the body is not JSON that can be read in one way: {name[:80]!r} is twice in an object"
            raise Problem(400, detail, "invalid_json")
        made[name] = value
    return made


def job_request(body: KernelRequest, gemm: Gemm, device: Device, budget: Budget, *, verify: bool) -> JobRequest:
    """The job that a request comes to."""
    return JobRequest(
        gemm=gemm,
        device=device,
        regime=body.regime,
        trials=budget.trials,
        seconds=budget.seconds,
        effort=budget.effort,
        seed=body.seed,
        verify=verify,
        priority=body.queue.priority,
        window=Window.parse(body.queue.window) if body.queue.window else None,
        other_devices=body.other_devices,
    )


def is_answer(known: KernelRecord | StoredAnswer, budget: Budget, *, named: bool) -> bool:
    """Whether a stored kernel does: a pinned one always; for whoever has not ``named`` a budget one that was tuned with
    the effort or a larger one, else one whose search covers the budget."""
    if known.pinned:
        return True
    if named or budget.effort is Effort.NONE:
        return search_covers(known, budget)
    return known.role == "tuned" and effort_of(known).level >= budget.effort.level


def _is_answer(known: KernelRecord | StoredAnswer, body: KernelRequest, budget: Budget) -> bool:
    return is_answer(known, budget, named=body.budget.trials is not None or body.budget.seconds is not None)


def known_kernel(
    state: ServiceState, gemm: Gemm, device_key: str, regime: Regime, *, other_devices: bool = False
) -> KernelRecord | None:
    """The stored kernel of a problem, if its artifact is there. A pinned one without is unpinned: built again it is
    another kernel, which it would stand before."""
    known = state.store.kernel(gemm, device_key, regime, other_devices=other_devices)
    if known is not None and known.pinned and not state.store.has_blob(known.artifact_sha256):
        logger.error(
            "kernel %s: it is pinned and its artifact %s is lost; it is unpinned", known.id, known.artifact_sha256
        )
        set_pinned(state.database, known.id, pinned=False)
        known = state.store.kernel(gemm, device_key, regime, other_devices=other_devices)
    return _whole(state, known)


def _whole(state: ServiceState, known: KernelRecord | None) -> KernelRecord | None:
    """The kernel, if its artifact is there and not revoked; one whose artifact is lost answers nothing, so that it is
    built again."""
    if known is None or revocation(state.database, known.artifact_sha256):
        return None
    if state.store.has_blob(known.artifact_sha256):
        return known
    logger.warning("kernel %s: its artifact %s is lost; it is built again", known.id, known.artifact_sha256)
    return None


def _resume(state: ServiceState, known: KernelRecord, request: JobRequest, asker: Asker | None) -> Job | None:
    """Have a search that was interrupted gone on with, unless more urgent jobs fill the queue or the key's quota, or no
    job can be stored now."""
    with suppress(QueueFull, QuotaExceeded, StoreUnavailable, StorageFull):
        limit = state.settings.max_queued
        return state.queue.submit(request, fallback_id=known.id, max_queued=limit, asker=asker)[0]
    return None


def devices_seen(state: ServiceState, seconds: float) -> list[Device]:
    """What the workers have that were seen in the last ``seconds``."""
    return [device for worker in state.queue.live_workers(seconds) for device in worker.devices]


def target_of(name: str | None, devices: Sequence[Device], *, wait: bool) -> Target | None:
    """The device that is meant; None where only a worker could say, and is waited for."""
    try:
        return resolve(name, devices)
    except Problem:
        if wait:
            return None
        raise


def progress(state: ServiceState, job_id: str) -> KernelOrJob:
    """How far a submitted job is."""
    job = state.queue.job(job_id)
    if job is None:
        raise InvalidRequest(f"job {job_id} was deleted while its answer was awaited; ask again")
    if job.status == "done":
        state.snapshots.expire()
        kernel = kernel_of_job(state, job.kernel_id)
        if kernel is None:
            words = "its kernel was deleted or revoked; ask again"
            raise Problem(409, f"job {job_id} is done, but {words}", "kernel_deleted")
        return KernelOrJob(kernel=kernel, job=job)
    return KernelOrJob(job=job, fallback=kernel_of_job(state, job.fallback_id))


def kernel_of_job(state: ServiceState, kernel_id: str | None) -> KernelRecord | None:
    """The kernel that a job names, unless it is deleted or revoked."""
    kernel = state.store.kernel_by_id(kernel_id) if kernel_id else None
    return None if kernel is None or revocation(state.database, kernel.artifact_sha256) else kernel


def workable(target: Target, devices: list[Device], *, verify: bool) -> Device:
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
        raise InvalidRequest(f"budget seconds is {seconds:.15g}; this service takes at most {settings.max_seconds:g}")
    usual = _usual_budget(body.effort, settings.max_trials, settings.max_seconds)
    if trials is None and seconds is None:
        return usual
    return Budget(
        usual.trials if trials is None else trials, usual.seconds if seconds is None else seconds, body.effort
    )


@cache
def _usual_budget(effort: Effort, max_trials: int, max_seconds: float) -> Budget:
    """The effort's own bounds, within the service's."""
    usual = Budget.of(effort)
    return Budget(min(usual.trials, max_trials), min(usual.seconds, max_seconds), effort)
