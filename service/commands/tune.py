"""``tirgemm tune``: search, with the records in the data folder, shown live."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.folder_option import data_folder, folder_of_locks
from tirgemm._terminal.output_file import check_output
from tirgemm._terminal.progress_view import ProgressView, console_view
from tirgemm._terminal.unused_options import require_unused
from tirgemm.cli import RegimeOption
from tirgemm.errors import DeviceUnavailable, InvalidRequest
from tirgemm.events import Event, SearchStarted
from tirgemm.gemm import REGIMES
from tirgemm.progress import ProgressTracker, role_description
from tirgemm.service.commands.sweep import problems, sweep
from tirgemm.service.views.search_summary_text import search_summary_text
from tirgemm.service.views.timing_tables import member_table, timing_table
from tirgemm.tuning.effort import Effort
from tirgemm.tuning_db.data_folder import open_store, signer

if TYPE_CHECKING:
    from tirgemm.artifact import Signer
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.records import KernelRecord
    from tirgemm.tuning.tuned_kernel import TuneRequest
    from tirgemm.tuning_db.shipped.layered_store import LayeredStore

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="TIRGEMM_DATA",
        parser=data_folder,
        help="Data folder; default ~/.local/share/tirgemm.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", envvar="TIRGEMM_DB", help="Database; default: SQLite in the data folder."),
]
LockDir = Annotated[
    Path | None,
    typer.Option(
        "--lock-dir",
        metavar="DIR",
        envvar="TIRGEMM_LOCK_DIR",
        parser=folder_of_locks,
        help="Folder of the host-wide device locks.",
    ),
]


def tune(
    gemms: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GEMM]...", help="Such as 4096x4096x4096:f16:nt; several are searched together."),
    ] = None,
    suite: Annotated[list[str] | None, typer.Option(help="The problems of this suite too; repeatable.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU, else the CPU.")] = None,
    regime: RegimeOption = "sustained",
    effort: Annotated[str, typer.Option(help=f"{', '.join(Effort)}: how far the search goes.")] = Effort.STANDARD.value,
    trials: Annotated[
        int | None, typer.Option(help="Candidates to build at most; recorded ones count. By default by the effort.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds of search at most. By default by the effort.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    family: Annotated[list[str] | None, typer.Option(help="Only these families; repeatable.")] = None,
    other_devices: Annotated[
        bool,
        typer.Option("--other-devices", help="Also try what was shipped for similar devices, verified and timed here."),
    ] = False,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="Write the artifact here.")] = None,
    retune: Annotated[
        bool, typer.Option("--retune", help="Go on with the search even where a kernel is stored: --trials more.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Trust the key of the folder --data from now on; that of yours always is.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the fastest verified kernel for each GEMM on a device of this machine.

    Of several the next candidates are those of the problem where a gain is likeliest; --trials and --seconds are for
    each. The same command goes on from what is recorded.

    Ctrl-C ends the search with the best kernel so far, certified and written, and exit code 130; a second one drops it.
    """
    from tirgemm.artifact import Trust
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.tuned_kernel import TuneRequest
    from tirgemm.tuning.tuned_kernel import tune as run
    from tirgemm.tuning.tuning_task import Control

    asked, budget = problems(gemms or (), suite or ()), Budget.of(effort, trials, seconds)
    if budget.effort is Effort.NONE:
        given = ("--trials", trials), ("--seconds", seconds), ("--retune", retune)
        require_unused("--effort none searches nothing", *given)
    if len(asked) > 1 and out is not None:
        raise InvalidRequest(f"--output is {out}, but there are {len(asked)} problems: `tirgemm get` writes each")
    requests = [
        replace(
            TuneRequest.of(gemm, device, regime, budget, seed=seed, families=family, retune=retune),
            other_devices=other_devices,
        )
        for gemm in asked
    ]
    request = requests[0]
    check_output(out)
    key = signer(data)
    if trust and key.public not in Trust.default().keys:
        Trust.of_user().add(key.public, f"the data folder {data}")
    if len(requests) > 1:
        with open_store(data, db) as store, _unverified_offered(request):
            _tune_many(requests, store, key, lock_dir, as_json=as_json)
        return
    tracker = ProgressTracker(str(request.gemm))
    told: list[Event] = []
    try:
        with (
            _unverified_offered(request),
            open_store(data, db) as store,
            console_view(tracker, console.err, quiet=as_json) as view,
            _stopped_by_interrupt(view) as stop,
        ):

            def on_event(event: Event) -> None:
                told.append(event)
                view(event)

            kernel = run(request, store=store, signer=key, control=Control(on_event, stop=stop), lock_dir=lock_dir)
    except KeyboardInterrupt:
        console.leave_interrupted()
    if out is not None:
        kernel.save(out)
    document = describe(kernel.record) | {
        "stored": not any(isinstance(event, SearchStarted) for event in told),
        "interrupted": stop.is_set(),
        "search": tracker.to_json(),
        "signer": key.public,
        "file": str(out) if out else None,
    }

    def show() -> None:
        _show(kernel.record)
        if document["stored"]:
            console.out.print(
                f"from the database: {kernel.record.trials} trials on {kernel.record.created_at[:10]};"
                f" {_larger(kernel.record, budget)} from there"
            )
        if stop.is_set():
            console.out.print(
                f"interrupted after {tracker.progress.done} of {budget.trials} candidates;"
                " the same command goes on from there"
            )
        if out is not None:
            console.out.print(f"{out}, signed by {key.public}")
            if key.public not in Trust.default().keys:
                console.out.print(f"to use it: tirgemm trust add {key.public}", soft_wrap=True)

    console.emit(as_json, document, show)
    if stop.is_set():
        raise typer.Exit(console.INTERRUPTED)


def _tune_many(
    requests: list[TuneRequest], store: LayeredStore, key: Signer, lock_dir: Path | None, *, as_json: bool
) -> None:
    """Search them together; Ctrl-C ends it with the best kernels so far, a second one at once."""
    from tirgemm.tuning.process.interrupts import stop_on_interrupt
    from tirgemm.tuning.workbench import Workbench

    stop = threading.Event()

    def acknowledge() -> None:
        console.err.print("ending: the best kernels so far are certified; Ctrl-C again drops them")

    with (
        Workbench(requests[0].device, store, key, lock_dir=lock_dir) as workbench,
        stop_on_interrupt(stop, acknowledge, force_exit=console.leave_interrupted),
    ):
        outcomes = sweep(requests, workbench, stop=stop, quiet=as_json)
    swept: dict[str, Any] = {
        "kernels": [describe(outcome.record) for outcome in outcomes if outcome.record is not None],
        "failed": [{"gemm": str(o.gemm), "error": str(o.error)} for o in outcomes if o.error is not None],
        "interrupted": stop.is_set(),
    }
    console.emit(
        as_json,
        swept,
        lambda: console.out.print(
            f"{len(swept['kernels'])} of {len(requests)} problems have a tuned kernel"
            + ("; the same command goes on from there" if stop.is_set() else "")
        ),
    )
    if stop.is_set():
        raise typer.Exit(console.INTERRUPTED)
    if swept["failed"]:
        raise typer.Exit(1)


def describe(record: KernelRecord) -> dict[str, Any]:
    """A kernel record as one JSON object."""
    fields = {f: getattr(record, f) for f in ("id", "regime", "role", "kernel_sha256", "artifact_sha256", "trials")}
    certificate = record.certificate.to_json() if record.certificate else None
    return fields | {
        "portable": record.portable,
        "other_device": record.other_device,
        "gemm": str(record.gemm),
        "device": record.device.key,
        "config": record.config.to_json(),
        "config_hash": record.config.digest,
        "timings": record.timings.to_json(),
        "certificate": certificate,
        "created_at": record.created_at,
    }


def _larger(record: KernelRecord, budget: Budget) -> str:
    """What goes on, where the stored kernel is the answer to ``budget``."""
    if budget.effort is Effort.NONE:
        return "a larger --effort goes on"
    if record.timings.ended in ("expected_gain", "complete", "exhausted", "shipped"):
        return "a larger --effort or --retune go on"
    return f"more {'--seconds' if record.timings.ended == 'seconds' else '--trials'} or --retune go on"


@contextmanager
def _unverified_offered(request: TuneRequest) -> Iterator[None]:
    """Where a device is refused because it is only named: say what builds for it nevertheless."""
    try:
        yield
    except DeviceUnavailable as error:
        if request.device.present:
            raise
        command = f"tirgemm get {request.gemm} --device {request.device.name} --unverified"
        raise DeviceUnavailable(f"{error}; `{command}` has a service build a kernel that nobody has run") from error


@contextmanager
def _stopped_by_interrupt(view: ProgressView) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, which is acknowledged at once; the second ends the process with 130."""
    from tirgemm.tuning.process.interrupts import acknowledgement, stop_on_interrupt

    def acknowledge() -> None:
        view.say(acknowledgement(view.tracker.progress))

    stop = threading.Event()
    with stop_on_interrupt(stop, acknowledge, force_exit=console.leave_interrupted):
        yield stop


def _show(record: KernelRecord) -> None:
    title = f"{record.gemm} on {record.device.model}: {record.config}"
    console.out.print(timing_table(record.timings, record.gemm.flops, title=title))
    if record.timings.members:
        console.out.print(member_table(record.timings.members))
    timings = filter(None, map(record.timings.of, REGIMES))
    if busy := next((timing.busy for timing in timings if timing.busy), None):
        console.out.print(busy, style="yellow")
    passed = record.certificate is not None and record.certificate.passed
    default = record.timings.default == str(record.config)
    words = [
        role_description(record.role, portable=record.portable, other_device=record.other_device),
        *([record.timings.reason or "the default stays"] if default and record.role == "tuned" else []),
    ]
    words += ["certified" if passed else "not certified", f"kernel {record.id}"]
    console.out.print("; ".join(words))
    if record.timings.search is not None:
        console.out.print(f"trials: {search_summary_text(record.timings.search, record.trials)}")
