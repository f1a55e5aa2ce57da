"""``tirgemm db collect``: measure configs of many problems, to train a ranking model with."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm.cli import RegimeOption
from tirgemm.gemm import regime_named
from tirgemm.service.commands.sweep import problems
from tirgemm.service.commands.tune import Data, LockDir, Url
from tirgemm.tuning.budget import MAX_TRIALS
from tirgemm.tuning_db.data_folder import new_database, open_store, signer


def collect(
    gemms: Annotated[
        list[str] | None, typer.Argument(metavar="[GEMM]...", help="Such as 4096x4096x4096:f16:nt.")
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help="The problems of this suite too, such as fit-1; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU, else the CPU.")] = None,
    regime: RegimeOption = "sustained",
    configs: Annotated[int, typer.Option(min=1, max=MAX_TRIALS, help="About so many configs of each problem.")] = 16,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds in all, at most.")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Draws the configs.")] = 0,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="The fastest recorded configs of each problem instead, "
            "those of shipped records of another driver or TVM among them, which are measured again.",
        ),
    ] = False,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    as_json: Json = False,
) -> None:
    """Measure configs of many problems and select none: what `tirgemm db train` learns from.

    Each family's default, the first of its ranking and others drawn at random; what is recorded is not measured again.
    With --recorded what is recorded as the fastest, as far as it is not in the database: shipped records of another
    driver or TVM are measured again.
    Ctrl-C ends it; the same command goes on from there.
    """
    from tirgemm.detect import device as detect_device
    from tirgemm.errors import TirgemmError
    from tirgemm.events import CandidateRecorded, Event
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.process.interrupts import stop_on_interrupt
    from tirgemm.tuning.search.collection import configs_to_collect, recorded_configs
    from tirgemm.tuning.sweep import Sweep
    from tirgemm.tuning.tune import Tuning
    from tirgemm.tuning.tuning_task import Control
    from tirgemm.tuning.workbench import Workbench

    stop, statuses = threading.Event(), Counter[str]()
    chosen, named, refused = detect_device(device), regime_named(regime), dict[str, str]()
    wanted, made = problems(gemms or (), suite or ()), new_database(data, db)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} configs"), TimeElapsedColumn()
    with (
        open_store(data, db) as store,
        Workbench(chosen, store, signer(data), lock_dir=lock_dir) as workbench,
        stop_on_interrupt(stop, lambda: console.err.print("ending"), force_exit=console.leave_interrupted),
        Progress(*columns, console=console.err, disable=as_json and not console.err.is_terminal) as progress,
    ):
        task = progress.add_task(f"{len(wanted)} problems, {regime}; {chosen.model}")

        def on_event(event: Event) -> None:
            if isinstance(event, CandidateRecorded):
                statuses[str(event.status)] += 1
                progress.advance(task)

        tunings, configs_of = [], {}
        for gemm in wanted:
            try:
                tuning = Tuning(gemm, workbench, named, Budget(configs, seconds), control=Control(on_event, stop=stop))
                of = gemm, chosen, named, tuning.families
                configs_of[gemm] = (
                    recorded_configs(*of, store, count=configs)
                    if recorded
                    else configs_to_collect(*of, count=configs, seed=seed)
                )
            except TirgemmError as error:
                refused[str(gemm)] = str(error)
                continue
            tunings.append(tuning)
        progress.update(task, total=sum(map(len, configs_of.values())))
        if tunings:
            Sweep(tunings, seconds=seconds, configs=configs_of).run()
    document = {"problems": len(tunings), "statuses": statuses, "refused": refused, "interrupted": stop.is_set()}

    def show() -> None:
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "nothing new"
        new = f" into a new tuning database in {made}" if made is not None else ""
        console.out.print(f"{len(tunings)} problems, {regime}{new}: {counts}")
        for gemm, reason in refused.items():
            console.out.print(f"{gemm}: {reason}", soft_wrap=True)

    console.emit(as_json, document, show)
    if stop.is_set():
        raise typer.Exit(console.INTERRUPTED)
    if not tunings:
        raise typer.Exit(1)
