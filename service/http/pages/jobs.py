"""``/jobs`` and ``/jobs/{id}``: tuning requests, followed while they run, cancelled, asked again with more budget."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BeforeValidator, ValidationError

from tirgemm.gemm import Gemm
from tirgemm.service.access.scopes import may_change
from tirgemm.service.http.documents import JobSummary
from tirgemm.service.http.pages.forms import FormFields, only_fields, redirected
from tirgemm.service.http.pages.live_documents import JobPage, JobsPage
from tirgemm.service.http.pages.site import HTML, OwnSite
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.request_bodies import KernelRequest
from tirgemm.service.http.requests import answer
from tirgemm.service.http.routes.jobs import FoundJob, cancel_job, job_document
from tirgemm.service.http.routes.parameters import ONLY_KNOWN, PageAfter
from tirgemm.service.http.state import Caller, State
from tirgemm.service.validation_messages import refusal
from tirgemm.service.views.queries import device_keys
from tirgemm.status import JobStatus
from tirgemm.tuning_db import Job

router = APIRouter(prefix="/jobs", tags=["pages"])

PAGE = 50
_SIZES = re.compile(r"\d+(\.\.\d+)?x\d+x\d+", re.ASCII)
# A field of a form that was left empty is no filter.
_EMPTY = BeforeValidator(lambda value: value or None)
ProblemFilter = Annotated[
    str,
    Query(max_length=512, description="Only this problem in its text form, or sizes MxNxK of any dtype and layout."),
]
DeviceName = Annotated[str, Query(max_length=200, description="Only this device: its key, or a name such as cpu.")]
StatusFilter = Annotated[JobStatus | None, _EMPTY, Query(description="Only jobs of this status.")]


@router.get("", dependencies=[ONLY_KNOWN], response_model=JobsPage, responses=HTML)
def jobs_page(
    site: OwnSite,
    state: State,
    shape: ProblemFilter = "",
    device: DeviceName = "",
    status: StatusFilter = None,
    after: PageAfter = "",
) -> Response:
    """The newest jobs, 50 at a time, by status, device and problem; an empty filter is none."""
    sizes = shape if _SIZES.fullmatch(shape) else ""
    gemm = Gemm.parse(shape) if shape and not sizes else None
    keys = device_keys(state.database, device) if device else None
    jobs = state.queue.jobs(PAGE + 1, status, gemm, keys, after=after, sizes=sizes)
    document = JobsPage(
        jobs=[JobSummary.of(job) for job in jobs[:PAGE]],
        next=jobs[PAGE - 1].id if len(jobs) > PAGE else None,
        shape=shape,
        device=device,
        status=status,
        newer=bool(after),
    )
    return site.answer("jobs.html", "Jobs", document)


@router.get("/{job_id}", response_model=JobPage, responses=HTML)
def job_page(site: OwnSite, job: FoundJob, state: State, caller: Caller) -> Response:
    """One job with all that it has done: candidates over time, what was pruned, predicted against measured times, the
    queue of builds, clock and power, the finalists' race."""
    limits, asked = state.settings, job.request
    has_room = asked.trials < limits.max_trials or asked.seconds < limits.max_seconds
    document = JobPage(
        job=job_document(state, job),
        history=state.histories.read(job),
        may_change=may_change(job.key_id, caller),
        may_ask=has_room and (caller is None or caller.allows("tune")),
        offered_trials=min(2 * asked.trials, limits.max_trials),
        offered_seconds=min(2 * asked.seconds, limits.max_seconds),
        max_trials=limits.max_trials,
        max_seconds=limits.max_seconds,
    )
    return site.answer("job.html", f"Job {job.id}", document)


@router.post("/{job_id}/cancel", response_class=RedirectResponse, status_code=303, include_in_schema=False)
def cancel(job: FoundJob, state: State, caller: Caller, request: Request, fields: FormFields) -> Response:
    """Cancel the job, as DELETE /v1/jobs/{job_id} does, and lead back to its page."""
    only_fields(fields)
    cancel_job(job, state, caller)
    return redirected(request, f"/jobs/{job.id}", f"/v1/jobs/{job.id}")


@router.post("/{job_id}/raise", response_class=RedirectResponse, status_code=303, include_in_schema=False)
def raise_budget(job: FoundJob, state: State, caller: Caller, request: Request, fields: FormFields) -> Response:
    """Ask for the job's kernel with a larger budget, as POST /v1/kernels does: lead to the job that works on it, or to
    the kernel that asks for no more."""
    priority = state.access.allowed_priority(caller, job.request.priority)
    body = _larger_request(job, only_fields(fields, "trials", "seconds"), priority)
    answered = answer(state, body, patient=False, asker=state.access.asker(caller))
    assert answered is not None
    if answered.job is None:
        assert answered.kernel is not None
        return RedirectResponse(f"/kernels/{answered.kernel.id}", 303)
    return redirected(request, f"/jobs/{answered.job.id}", f"/v1/jobs/{answered.job.id}")


def _larger_request(job: Job, budget: list[str], priority: int) -> KernelRequest:
    """The job's request with another budget and this priority. Raises the 422 problem for one that is no larger."""
    asked = job.request
    trials, seconds = (_number(name, text) for name, text in zip(("trials", "seconds"), budget, strict=True))
    if trials < asked.trials or seconds < asked.seconds or (trials, seconds) == (asked.trials, asked.seconds):
        detail = f"budget is {trials:g} trials and {seconds:.15g} seconds; it must be more than those of job {job.id}"
        raise Problem(422, f"{detail}, {asked.trials} trials and {asked.seconds:.15g} seconds", "invalid_request")
    members = {
        "gemm": str(asked.gemm),
        "device": asked.device.key,
        **{name: getattr(asked, name) for name in ("regime", "effort", "seed", "verify", "other_devices")},
        "budget": {"trials": trials, "seconds": seconds},
        "queue": {"priority": priority} | ({"window": str(asked.window)} if asked.window else {}),
    }
    try:
        return KernelRequest.model_validate(members)
    except ValidationError as error:
        first = error.errors()[0]
        named = ".".join(map(str, first["loc"]))
        raise Problem(422, refusal(named, first), "invalid_request") from error


def _number(name: str, text: str) -> float:
    """A number of a form. Raises the 422 problem."""
    try:
        return float(text)
    except ValueError as error:
        raise Problem(422, f"{name} is {text[:40]!r}; it must be a number", "invalid_request") from error
