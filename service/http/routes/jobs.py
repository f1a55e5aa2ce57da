"""``/v1/jobs``: look at tuning requests, follow them, cancel, retry and reorder them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from tirgemm.gemm import Gemm
from tirgemm.service.http.documents import JobDocument, JobList, JobSummary
from tirgemm.service.http.events import Follower, last_event_id, stream
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.request_bodies import PriorityChange, RetryRequest
from tirgemm.service.http.requests import kernel_of_job
from tirgemm.service.http.routes.parameters import (
    JSON_BODY,
    ONLY_KNOWN,
    DeviceFilter,
    GemmFilter,
    PageAfter,
    require_own,
)
from tirgemm.service.http.state import Caller, ServiceState, State
from tirgemm.service.views.queries import device_keys
from tirgemm.status import ENDED, JobStatus
from tirgemm.tuning_db import Job
from tirgemm.tuning_db.record_values import RECORD_ID

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def _job(job_id: str, state: State) -> Job:
    job = state.queue.job(job_id) if RECORD_ID.fullmatch(job_id) else None
    if job is None:
        raise Problem(404, f"there is no job {job_id[:64]!r}; GET /v1/jobs lists them", "job_not_found")
    return job


async def _after(
    last_event: Annotated[str, Header(alias="Last-Event-ID", json_schema_extra={"pattern": "^[0-9]{0,18}$"})] = "",
    after: Annotated[
        str,
        Query(
            description="As Last-Event-ID, which counts where both are there, and which browsers send only when back.",
            json_schema_extra={"pattern": "^[0-9]{0,18}$"},
        ),
    ] = "",
) -> int:
    from_header, from_query = last_event_id(last_event), last_event_id(after, "after")
    return from_header if last_event else from_query


# Looked at before a stream starts, so that what is wrong is still an error and not the end of a stream.
FoundJob = Annotated[Job, Depends(_job)]
After = Annotated[int, Depends(_after)]
Beats = Annotated[
    bool,
    Query(
        alias="alive",
        description="Send an event alive at once, and after each four seconds without another, without an id: a "
        "browser's page sees no comments, and could not tell a silent job from a connection that is gone.",
    ),
]


def job_document(state: ServiceState, job: Job) -> JobDocument:
    """The job with the documents of its kernels."""
    if job.status in ENDED:
        state.snapshots.expire()
    return JobDocument.with_kernels(job, kernel_of_job(state, job.fallback_id), kernel_of_job(state, job.kernel_id))


@router.get("", dependencies=[ONLY_KNOWN])
def list_jobs(
    state: State,
    gemm: GemmFilter = None,
    device: DeviceFilter = None,
    status: Annotated[JobStatus | None, Query(description="Only jobs of this status.")] = None,
    after: PageAfter = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> JobList:
    """The newest jobs."""
    problem = None if gemm is None else Gemm.parse(gemm)
    keys = None if device is None else device_keys(state.database, device)
    jobs = state.queue.jobs(limit + 1, status, problem, keys, after=after)
    page = [JobSummary.of(job) for job in jobs[:limit]]
    return JobList(jobs=page, next=page[-1].id if len(jobs) > limit else None)


@router.get("/{job_id}")
def get_job(job: FoundJob, state: State, response: Response) -> JobDocument:
    """One job, with its fallback and, once it is done, its kernel."""
    response.headers["Cache-Control"] = "no-store"
    return job_document(state, job)


@router.delete("/{job_id}")
def cancel_job(job: FoundJob, state: State, caller: Caller) -> JobDocument:
    """Cancel a job, for everyone who joined it; what it has measured stays. Cancelling twice is the same as once.

    The job is cancelled at once; its worker stops within a second. A key cancels the jobs that it asked for first; one
    of the scope admin cancels every job.
    """
    require_own(f"job {job.id}", job.key_id, caller, "cancel")
    job = state.queue.cancel(job.id)
    if job.status in ENDED and job.status != "cancelled":
        raise Problem(
            409, f"job {job.id} is {job.status}; only a queued or running job can be cancelled", "job_finished"
        )
    return job_document(state, job)


@router.patch("/{job_id}", dependencies=[JSON_BODY])
def change_job(job: FoundJob, body: PriorityChange, state: State, caller: Caller, request: Request) -> JobDocument:
    """Give a queued job another place in the queue.

    A key changes the jobs that it asked for first, up to the priority that its scope allows.
    """
    require_own(f"job {job.id}", job.key_id, caller, "change")
    state.access.require_priority(caller, body.priority)
    changed = state.queue.prioritise(job.id, body.priority)
    if changed.status != "queued":
        raise Problem(409, f"job {job.id} is {changed.status}; only a queued job has a place to change", "job_finished")
    request.state.changed = f"/v1/jobs/{job.id}"
    return job_document(state, changed)


@router.post("/{job_id}/retry", dependencies=[JSON_BODY])
def retry_job(job: FoundJob, body: RetryRequest, state: State, caller: Caller, request: Request) -> JobDocument:
    """Put a job that failed or was cancelled back into the queue; it goes on from what is recorded.

    A job may be retried a few times, see the limits in /v1/meta. A key retries the jobs that it asked for first.
    """
    require_own(f"job {job.id}", job.key_id, caller, "retry")
    settings = state.settings
    retried = state.queue.retry(
        job.id,
        body.reason,
        limit=settings.max_retries,
        max_queued=settings.max_queued,
        asker=state.access.asker(caller) if caller is not None and caller.id == job.key_id else None,
    )
    request.state.changed = f"/v1/jobs/{job.id}/retry"
    return job_document(state, retried)


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def job_events(
    job: FoundJob, state: State, after: After, caller: Caller, beats: Beats = False
) -> AsyncIterator[ServerSentEvent]:
    """The job's events as they happen, from the first one or from behind Last-Event-ID; ends when the job ends.

    Kinds: started, phase, fallback, batch, builds, candidate, race, selected, and last one of done, failed, cancelled.
    A comment comes every 15 seconds in which nothing happens.
    """
    async for event in stream(state, job.id, after, Follower(state.access, caller, beats=beats)):
        yield event
