"""``/v1/kernels``: ask for the kernel of a problem, and look at those that are there."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from tirgemm.errors import http_status
from tirgemm.gemm import Gemm, Regime
from tirgemm.service.http import events
from tirgemm.service.http.documents import JobError, KernelDocument, KernelList, PendingDocument
from tirgemm.service.http.key_check import require_still_admitted
from tirgemm.service.http.prefer import wait_preference
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.request_bodies import KernelRequest
from tirgemm.service.http.requests import KernelOrJob, answer, answer_of, progress
from tirgemm.service.http.routes.jobs import job_document
from tirgemm.service.http.routes.parameters import (
    JSON_BODY,
    ONLY_KNOWN,
    DeviceFilter,
    GemmFilter,
    IfNoneMatch,
    PageAfter,
    RepeatableId,
    etag_matches,
)
from tirgemm.service.http.state import Caller, ServiceState, State
from tirgemm.service.views.queries import KernelFilter, device_keys
from tirgemm.status import WITHOUT_KERNEL
from tirgemm.tuning.process import spans
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db.access.api_keys import ApiKey
from tirgemm.tuning_db.record_values import RECORD_ID
from tirgemm.tuning_db.upkeep.pins import set_pinned

router = APIRouter(prefix="/v1/kernels", tags=["kernels"])

RETRY_SECONDS = 1


@router.post(
    "",
    dependencies=[JSON_BODY],
    response_model=KernelDocument,
    responses={
        200: {"description": "The kernel: from the database, or tuned within the wait."},
        202: {
            "model": PendingDocument,
            "description": "A job is working on it; Location is the job's address.",
            "headers": {
                "Location": {"schema": {"type": "string"}},
                "Retry-After": {"schema": {"type": "integer"}},
            },
        },
    },
)
async def request_kernel(
    request: Request,
    body: KernelRequest,
    state: State,
    caller: Caller,
    job_id: RepeatableId,
    prefer: Annotated[str | None, Header(description="wait=N, in seconds")] = None,
) -> Response:
    """The kernel of a problem on a device in a regime: at once where it is known, else by a job that may be joined.

    A budget larger than what was spent on the known one, or ``retune``, goes on from the records. While the job works
    its fallback is in the answer, if that is ready within a few seconds. ``Prefer: wait=N`` waits up to N seconds for
    the tuned kernel instead; ``wait=0`` not at all. The same request with the same Idempotency-Key is answered by the
    job that it made.
    """
    wait, applied = wait_preference(prefer, state.settings.max_wait_seconds)
    state.access.require_priority(caller, body.queue.priority)
    # A worker that this server runs may be starting at this moment.
    patient = state.settings.worker and wait != 0
    asker = state.access.asker(caller)
    answer_it = partial(answer, state, body, asker=asker, job_id=job_id)
    answered = await run_in_threadpool(answer_it, patient=patient)
    if answered is None:
        await state.watch.worker(state.settings.fallback_seconds)
        await require_still_admitted(state.access, caller)
        answered = await run_in_threadpool(answer_it, patient=False)
    assert answered is not None
    state.metrics.answers.labels("database" if answered.job is None else "job").inc()
    if answered.job is not None:
        request.state.changed = f"/v1/jobs/{answered.job.id}"
        spans.annotate(job=answered.job.id)
    if answered.kernel is None:
        answered = await _waited(request, state, answered, wait, caller)
    if answered.kernel is not None:
        return answer_of(state, body, answered.kernel).response(applied)
    headers = {"Cache-Control": "no-store", "Vary": "Prefer", **applied}
    assert answered.job is not None
    job = await run_in_threadpool(job_document, state, answered.job)
    if answered.job.status in WITHOUT_KERNEL:
        raise _ended(answered, job.model_dump(mode="json"))
    headers |= {"Location": f"/v1/jobs/{answered.job.id}", "Retry-After": str(RETRY_SECONDS)}
    pending = PendingDocument(
        status="running" if answered.fallback else "building",
        job=job,
        fallback=KernelDocument.of(answered.fallback) if answered.fallback else None,
    )
    return JSONResponse(pending.model_dump(mode="json"), 202, headers)


@router.get("", dependencies=[ONLY_KNOWN], response_model=KernelList)
def get_kernels(
    state: State,
    gemm: GemmFilter = None,
    device: DeviceFilter = None,
    regime: Regime | None = None,
    after: PageAfter = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Kernels of every role, newest first."""
    problem = None if gemm is None else Gemm.parse(gemm)
    keys = None if device is None else device_keys(state.database, device)
    page = state.kernel_pages.page(KernelFilter(problem, keys, regime), after, limit)
    return Response(page, media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get("/{kernel_id}", response_model=KernelDocument, responses={304: {"description": "The client has it."}})
def get_kernel(kernel_id: str, state: State, if_none_match: IfNoneMatch = None) -> Response:
    """One kernel."""
    document = state.documents.of(kernel_record(state, kernel_id))
    headers = {"ETag": document.etag, "Cache-Control": "no-cache"}
    if etag_matches(if_none_match, document.etag):
        return Response(status_code=304, headers=headers)
    return Response(document.json, 200, headers, "application/json")


@router.put("/{kernel_id}/pin")
def pin_kernel(kernel_id: str, state: State, request: Request) -> KernelDocument:
    """Pin a kernel: it is what its problem is answered with on its device in its regime, whatever is tuned later.

    It is neither deleted nor pruned until it is unpinned. Another one that was pinned in its place is no more.
    """
    pinned = _pinned(state, kernel_id, pinned=True)
    request.state.changed = f"/v1/kernels/{kernel_id}/pin"
    return pinned


@router.delete("/{kernel_id}/pin")
def unpin_kernel(kernel_id: str, state: State) -> KernelDocument:
    """Unpin a kernel: its problem is answered with the newest tuned one again. Twice is the same as once."""
    return _pinned(state, kernel_id, pinned=False)


@router.delete("/{kernel_id}", status_code=204, response_class=Response)
def delete_kernel(kernel_id: str, state: State) -> None:
    """Forget a kernel, with its artifact unless another kernel has the same one. What was measured stays.

    The next request for its problem is answered by the tuned kernel before it, or makes it again from the records. A
    job that works on the problem goes on.
    """
    # Not looked at first: a damaged row is deleted, too.
    if not (RECORD_ID.fullmatch(kernel_id) and state.store.delete_kernel(kernel_id)):
        raise _no_kernel(kernel_id)


def _pinned(state: ServiceState, kernel_id: str, *, pinned: bool) -> KernelDocument:
    record = kernel_record(state, kernel_id)
    changed = set_pinned(state.database, record.id, pinned=pinned)
    if changed is None:
        raise _no_kernel(kernel_id)
    return KernelDocument.of(changed)


def kernel_record(state: ServiceState, kernel_id: str) -> KernelRecord:
    """The kernel of an id that a client sent. Raises Problem."""
    record = state.store.kernel_by_id(kernel_id) if RECORD_ID.fullmatch(kernel_id) else None
    if record is None:
        raise _no_kernel(kernel_id)
    return record


def _no_kernel(kernel_id: str) -> Problem:
    return Problem(404, f"there is no kernel {kernel_id[:64]!r}; GET /v1/kernels lists them", "kernel_not_found")


async def _waited(
    request: Request, state: ServiceState, answered: KernelOrJob, wait: float | None, caller: ApiKey | None
) -> KernelOrJob:
    """What is there once the kernel is, or, where no wait was asked for, the fallback; at once where nobody listens
    any more. Raises the 401 problem once the caller's key is no longer valid."""
    assert answered.job is not None
    job_id, known = answered.job.id, answered.fallback
    deadline = time.monotonic() + (state.settings.fallback_seconds if wait is None else wait)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        with state.watch.follow(job_id) as feed:
            # Taken before each look, so that no change behind it is missed; the first look is from before this.
            changed = feed.changed
            if feed.seen:
                answered = await _look(state, job_id, known)
            while True:
                finished = answered.kernel is not None or answered.job is None or answered.job.status in WITHOUT_KERNEL
                if finished or (wait is None and answered.fallback is not None):
                    return answered
                left = deadline - time.monotonic()
                if left <= 0 or state.stopping.is_set() or gone.done():
                    return answered
                await _happens(changed, gone, min(left, events.CHECK_SECONDS))
                await require_still_admitted(state.access, caller)
                if changed.is_set():
                    changed = feed.changed
                    answered = await _look(state, job_id, known)
    finally:
        gone.cancel()


async def _look(state: ServiceState, job_id: str, known: KernelRecord | None) -> KernelOrJob:
    """How far the job is now; ``known`` answers until there is something newer."""
    job = await run_in_threadpool(progress, state, job_id)
    if job.fallback is None and job.kernel is None:
        return KernelOrJob(job=job.job, fallback=known)
    return job


async def _happens(event: asyncio.Event, gone: asyncio.Future[None], seconds: float) -> None:
    """Wait for ``event``, until nobody listens any more, at most ``seconds``."""
    change = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((change, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _ended(answered: KernelOrJob, job: dict[str, Any]) -> Problem:
    """The problem for a job that ended without a kernel while its answer was awaited."""
    assert answered.job is not None
    if answered.job.status == "cancelled":
        return Problem(
            409, f"job {answered.job.id} was cancelled while it was awaited; ask again", "cancelled", job=job
        )
    error = JobError.of(answered.job.error or "error: no reason given")
    detail = f"job {answered.job.id} failed: {error.detail}"
    return Problem(http_status(error.code), detail, error.code, job=job)
