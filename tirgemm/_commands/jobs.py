"""``tirgemm jobs``: the tuning jobs of a service, listed, followed to their end, cancelled, put back, reordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.progress_view import console_view
from tirgemm._terminal.tables import Column, Table
from tirgemm.cli import URL
from tirgemm.errors import Interrupted
from tirgemm.events import JobPolled, Phase
from tirgemm.progress import ProgressTracker
from tirgemm.timings import Timings

if TYPE_CHECKING:
    from tirgemm.client import Client

app = console.command_group("List, watch, cancel, retry and reorder the tuning jobs of a service.")
ServiceUrl = Annotated[str, typer.Option("--url", help="The service.")]
# Whoever only looks is not kept waiting for a service that is away.
PATIENCE_SECONDS = 3.0
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job, by its id.")]


@app.command("list")
def list_jobs(
    gemm: Annotated[str | None, typer.Option(help="Only jobs of this problem.")] = None,
    device: Annotated[str | None, typer.Option(help="Only jobs of this device: cpu, sm_90a, a device's key.")] = None,
    status: Annotated[str | None, typer.Option(help="Only queued, running, done, failed or cancelled ones.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    url: ServiceUrl = URL,
    as_json: Json = False,
) -> None:
    """The newest jobs."""
    with client_of(url) as client:
        jobs = client.jobs(limit, gemm=gemm, device=device, status=status)

    def show() -> None:
        table = Table(
            "job",
            "status",
            "problem",
            "device",
            Column("budget", number=True, optional=2),
            Column("priority", number=True, optional=3),
            Column("asked", optional=1),
        )
        for job in jobs:
            asked = str(job["created_at"])[:16].replace("T", " ")
            table.add_row(
                job["id"],
                job["status"],
                job["gemm"],
                job["device"]["name"],
                str(job["budget"]["trials"]),
                str(job.get("priority", 0)),
                asked,
            )
        console.out.print(
            table if jobs else f"{client.url} has no {'such job' if gemm or device or status else 'jobs'}"
        )

    console.emit(as_json, {"jobs": jobs}, show)


@app.command()
def watch(job_id: JobId, url: ServiceUrl = URL, as_json: Json = False) -> None:
    """Follow a job to its end; exit code 1 where it fails, is cancelled, or its kernel was deleted or revoked. Ctrl-C
    ends the watching, not the job."""
    from tirgemm.client import Client

    with Client(url) as client:
        try:
            job = client.job(job_id)
            tracker = ProgressTracker(str(job["gemm"]), phase=Phase.QUEUED)
            with console_view(tracker, console.err, quiet=as_json) as view:
                view(JobPolled(document=job))
                for received in client.events(job_id):
                    view(received.event)
            job = client.job(job_id)
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"no longer watching; job {job_id} goes on, `tirgemm jobs cancel {job_id}` ends it"
            ) from error
    console.emit(as_json, job, lambda: console.out.print(_ending(job)))
    if job["status"] != "done" or not job.get("kernel"):
        raise typer.Exit(console.FAILED)


@app.command()
def cancel(job_id: JobId, url: ServiceUrl = URL, as_json: Json = False) -> None:
    """Cancel a job that is queued or running, for everyone who waits for it. What it has measured stays."""
    with client_of(url) as client:
        job = client.cancel(job_id)
    console.emit(as_json, job, lambda: console.out.print(_ending(job)))


@app.command()
def retry(
    job_id: JobId,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at the job.")] = "",
    url: ServiceUrl = URL,
    as_json: Json = False,
) -> None:
    """Put a job that failed or was cancelled back into the queue. It goes on from what it has measured."""
    with client_of(url) as client:
        job = client.retry(job_id, reason)
    console.emit(as_json, job, lambda: console.out.print(_ending(job)))


@app.command()
def prioritise(
    job_id: JobId,
    priority: Annotated[int, typer.Argument(metavar="PRIORITY", help="From -100 to 100, higher first.")],
    url: ServiceUrl = URL,
    as_json: Json = False,
) -> None:
    """Give a queued job another place in the queue. Write `--` before a negative PRIORITY."""
    with client_of(url) as client:
        job = client.prioritise(job_id, priority)
    console.emit(as_json, job, lambda: console.out.print(f"{_ending(job)}, of priority {job.get('priority')}"))


def client_of(url: str) -> Client:
    """A client of the service at ``url`` that does not wait long for one that is away."""
    from tirgemm.client import Client

    return Client(url, patience=PATIENCE_SECONDS)


def _ending(job: dict[str, Any]) -> str:
    """How a job ended, in a sentence."""
    what = f"job {job['id']} for {job['gemm']}"
    if job["status"] == "failed":
        error = job.get("error") or {}
        return f"{what} failed: {error.get('code')}: {error.get('detail')}"
    kernel = job.get("kernel")
    if not kernel:
        deleted = ", but its kernel was deleted or revoked; ask again" if job["status"] == "done" else ""
        return f"{what} is {job['status']}{deleted}"
    if isinstance(kernel, str):
        return f"{what} is {job['status']}: kernel {kernel}"
    timing = Timings.from_json(kernel["timings"]).of(job["regime"])
    time = f", {timing.median_us:.2f} us a call" if timing else ""
    return f"{what} is {job['status']}: kernel {kernel['id']}{time}"
