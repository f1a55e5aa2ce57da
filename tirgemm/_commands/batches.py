"""``tirgemm batches``: problems that a service tunes together, submitted, listed, followed, cancelled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tirgemm._commands.jobs import ServiceUrl, client_of
from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.tables import Column, Table
from tirgemm.cli import URL
from tirgemm.errors import Interrupted

app = console.command_group("Submit, list, watch and cancel batches of a service: problems that are tuned together.")
# How a problem can end without a kernel, and of how many that ended in one way each is named.
_WITHOUT_KERNEL, _NAMED = ("failed", "cancelled", "deleted"), 5
BatchId = Annotated[str, typer.Argument(metavar="ID", help="A batch, by its id.")]


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model file: the problems, in TOML.")],
    effort: Annotated[str | None, typer.Option(help="How far each search goes at most.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Candidates that all searches together may build.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Seconds that all searches together may take.")] = None,
    priority: Annotated[int | None, typer.Option(help="Of its jobs: higher first, 0 by default.")] = None,
    window: Annotated[
        str | None, typer.Option(help="The hours, in UTC, in which its jobs may start, such as 22:00-06:00.")
    ] = None,
    other_devices: Annotated[
        bool, typer.Option("--other-devices", help="Also try what was shipped for similar devices, verified there.")
    ] = False,
    url: ServiceUrl = URL,
    as_json: Json = False,
) -> None:
    """Ask for every problem that FILE lists, on one device. It does not wait."""
    from tirgemm._client.model_file import ModelFile

    model = ModelFile.read(file)
    budget = {name: value for name, value in (("trials", trials), ("seconds", seconds)) if value is not None}
    queue = {name: value for name, value in (("priority", priority), ("window", window)) if value is not None}
    with client_of(url) as client:
        batch = client.submit_batch(
            list(model.kernels.values()),
            device=model.device,
            regime=model.regime,
            effort=effort,
            budget=budget or None,
            queue=queue or None,
            other_devices=other_devices,
        )
    console.emit(as_json, batch, lambda: console.out.print(_words(batch)))


@app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    url: ServiceUrl = URL,
    as_json: Json = False,
) -> None:
    """The newest batches."""
    with client_of(url) as client:
        batches = client.batches(limit)

    def show() -> None:
        table = Table("batch", "status", "problems", Column("asked", optional=1))
        for batch in batches:
            asked = str(batch["created_at"])[:16].replace("T", " ")
            table.add_row(batch["id"], batch["status"], _states(batch), asked)
        console.out.print(table if batches else f"{client.url} has no batch")

    console.emit(as_json, {"batches": batches}, show)


@app.command()
def show(batch_id: BatchId, url: ServiceUrl = URL, as_json: Json = False) -> None:
    """A batch with each of its problems, the largest expected gain first."""
    with client_of(url) as client:
        batch = client.batch(batch_id)

    def tell() -> None:
        table = Table("problem", "state", ">x default", ">expected", Column("job", optional=1), "kernel")
        for item in batch["items"]:
            gain = item["gain"]
            table.add_row(
                item["gemm"],
                item["state"],
                "" if gain is None else f"{gain:.3f}",
                f"{1 + item['expected_gain']:.3f}",
                item["job"] or "",
                item["kernel"] or "",
            )
        console.out.print(_words(batch))
        console.out.print(table)

    console.emit(as_json, batch, tell)


@app.command()
def watch(batch_id: BatchId, url: ServiceUrl = URL, as_json: Json = False) -> None:
    """Follow a batch to its end; exit code 1 where it is cancelled, or a problem ended without a kernel: failed,
    cancelled or deleted. Ctrl-C ends the watching alone."""
    from tirgemm.client import Client

    with Client(url) as client:
        try:
            for progress in client.batch_progress(batch_id):
                if not as_json:
                    console.err.print(_words(progress))
            batch = client.batch(batch_id)
        except KeyboardInterrupt as error:
            words = f"no longer watching; batch {batch_id} goes on, `tirgemm batches cancel {batch_id}` ends it"
            raise Interrupted(words) from error
    console.emit(as_json, batch, lambda: console.out.print(_words(batch)))
    missed = _without_kernel(batch)
    if missed:
        console.err.print(f"without a kernel: {missed}", style="yellow", markup=False, soft_wrap=True)
    if batch["status"] != "done" or missed:
        raise typer.Exit(console.FAILED)


@app.command()
def cancel(batch_id: BatchId, url: ServiceUrl = URL, as_json: Json = False) -> None:
    """Cancel the jobs that a batch made. What they have measured stays."""
    with client_of(url) as client:
        batch = client.cancel_batch(batch_id)
    console.emit(as_json, batch, lambda: console.out.print(_words(batch)))


def _states(batch: dict[str, Any]) -> str:
    return ", ".join(f"{count} {state}" for state, count in batch["states"].items())


def _without_kernel(batch: dict[str, Any]) -> str:
    """The problems that ended without a kernel by how they ended, the first few of each: ``2 cancelled (7x5x3:f16:nn,
    9x5x3:f16:nn)``; empty where there are none."""
    problems: dict[str, list[str]] = {}
    for item in batch["items"]:
        # Of a job that is done the kernel may have been deleted since.
        state = "deleted" if item["state"] == "done" and item["kernel"] is None else item["state"]
        if state in _WITHOUT_KERNEL:
            problems.setdefault(state, []).append(item["gemm"])
    return "; ".join(
        f"{len(gemms)} {state} ({', '.join(gemms[:_NAMED])}{', ...' if len(gemms) > _NAMED else ''})"
        for state, gemms in problems.items()
    )


def _words(batch: dict[str, Any]) -> str:
    """How far a batch is, in a sentence."""
    gain = batch["gain"]
    known = gain["kernels"] and gain["geomean"] is not None
    mean = f"; tuned kernels are {gain['geomean']:.3f} times as fast as the defaults" if known else ""
    return f"batch {batch['id']} is {batch['status']}: {_states(batch)}{mean}"
