"""``tirgemm bench``: measure suites of shapes into results files."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.output_file import check_output
from tirgemm._terminal.progress_view import LOG_SECONDS, LineView
from tirgemm._terminal.tables import Table
from tirgemm._terminal.unused_options import require_unused
from tirgemm.errors import InvalidRequest
from tirgemm.events import Event, SearchStarted
from tirgemm.gemm import REGIMES, Gemm, Regime, regime_named
from tirgemm.progress import ProgressTracker
from tirgemm.service.commands.tune import Data, LockDir, Url
from tirgemm.tuning.budget import Budget
from tirgemm.tuning_db.data_folder import open_store, signer

if TYPE_CHECKING:
    from tirgemm.bench.results import ResultsFile, Row
    from tirgemm.bench.suite_file import Suite
    from tirgemm.bench.suite_run import Work


def bench(
    suites: Annotated[
        list[str],
        typer.Argument(
            metavar="SUITE...",
            help="Names of suites (an unknown name lists them), or JSON files.",
        ),
    ],
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU, else the CPU.")] = None,
    regime: Annotated[str, typer.Option(help="sustained, isolated, or both with a comma.")] = "sustained",
    variants: Annotated[
        str, typer.Option(help="Of default, zero_shot, quick, standard, standard_again, tuned, with commas.")
    ] = "default,tuned",
    baselines: Annotated[
        str | None, typer.Option(help="Names with commas, or none; default: all that can be measured here.")
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Tuned is the best config of the database's records, nothing is tuned.")
    ] = False,
    finalists: Annotated[
        int | None,
        typer.Option(min=1, help="With --recorded, so many of the fastest run beside the default; 2 by default."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help=f"Candidates a shape that tuning builds at most; {Budget().trials} by default.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help=f"Seconds of search a shape at most; {Budget().seconds:.0f} by default.")
    ] = None,
    clock: Annotated[
        bool,
        typer.Option("--clock", help="Time the whole answers of zero_shot, quick and standard; builds nothing ahead."),
    ] = False,
    measure: Annotated[float, typer.Option(min=0, help="Seconds that a shape is measured for in each regime.")] = 1.0,
    races: Annotated[
        int, typer.Option(min=1, help="How often each shape is measured; what is published needs two.")
    ] = 2,
    limit: Annotated[
        float | None, typer.Option(min=0, help="Begin no shape after so many seconds; --resume goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    family: Annotated[list[str] | None, typer.Option(help="Only these families; repeatable.")] = None,
    commit: Annotated[
        str | None, typer.Option(help="The program's commit, where this copy of it has no history.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the rows that the files have, and add the others.")
    ] = False,
    compress: Annotated[bool, typer.Option("--compress", help="Write .json.gz files.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--output", "--out", "-o", help="The results file, or the folder of several."),
    ] = None,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    as_json: Json = False,
) -> None:
    """Measure every shape of every SUITE in every variant, beside the baselines, verified, samples kept.

    zero_shot, quick and standard are what a user without any records gets by that effort: this database is not asked.
    """
    from tirgemm.bench.effort_answers import require_variants
    from tirgemm.bench.results import ResultsFile, device_folder, environment
    from tirgemm.bench.suite_run import Bench, BenchOptions, Work
    from tirgemm.bench.suites import benchmarks_folder, suite_named
    from tirgemm.detect import device as detect
    from tirgemm.tuning.process.interrupts import stop_on_interrupt
    from tirgemm.tuning.workbench import Workbench

    shapes, regimes = [suite_named(name) for name in suites], _regimes(regime)
    target, budget = detect(device), Budget.of(None, trials, seconds)
    if recorded:
        require_unused("--recorded tunes nothing", ("--trials", trials), ("--seconds", seconds))
    else:
        require_unused("without --recorded there are no finalists of records", ("--finalists", finalists))
    home = benchmarks_folder()
    folder = home / "results" / device_folder(target) if home else Path()
    about = environment(target, home.parent if home else None, commit)
    names = list(dict.fromkeys(names_of(variants)))
    require_variants(names, clock=clock)
    asked = None if baselines is None else names_of(baselines)

    def work(suite: Suite, regime: Regime) -> Work:
        alone = len(shapes) * len(regimes) == 1 and not (out and out.is_dir())
        path = out if out and alone else (out or folder) / f"{suite.name}.{regime}.json{'.gz' if compress else ''}"
        return Work(suite, regime, ResultsFile(path, suite.name, regime, about, resume=resume))

    works = [work(suite, regime) for regime in regimes for suite in shapes]
    if len({each.file.path for each in works}) < len(works):
        raise InvalidRequest("suites of one name would share a results file; rename one, or measure one at a time")
    for each in works:
        each.file.path.parent.mkdir(parents=True, exist_ok=True)
        check_output(each.file.path, "the results file", replaces=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        open_store(data, db) as store,
        Workbench(target, store, signer(data), lock_dir=lock_dir) as workbench,
        stop_on_interrupt(threading.Event(), _told_of_interrupt, force_exit=console.leave_interrupted, at_once=True),
    ):
        progress = Progress(*columns, console=console.err, disable=as_json and not console.err.is_terminal)
        total = len(names) * sum(len(work.suite.gemms) for work in works)
        task = progress.add_task(f"{', '.join(suite.name for suite in shapes)}; {regime}; {target.model}", total=total)

        def on_row(row: Row, kept: bool) -> None:
            progress.advance(task)
            progress.console.print(_line(row, kept), highlight=False, markup=False, soft_wrap=True)

        teller = _Teller(progress, task, quiet=as_json)
        options = BenchOptions(
            baselines=None if asked is None else tuple(asked),
            budget=budget,
            seed=seed,
            families=tuple(family) if family else None,
            recorded=recorded,
            seconds=measure,
            finalists=finalists or BenchOptions.finalists,
            races=races,
            clock=clock,
            on_event=teller.on_event,
            on_shape=teller.on_shape,
        )
        runner = Bench(workbench, options)
        with progress:
            left = runner.run(works, names, on_row, limit_s=limit)
    files = [_summary(work.file) for work in works]
    document: dict[str, Any] = {"files": files, "left": left}

    def show() -> None:
        for work in works:
            _show(f"{work.suite.name}, {work.regime}: {work.file.path}", work.file.document["summary"])
        if left:
            console.out.print(f"{left} shapes are left: run it again with --resume")

    console.emit(as_json, document, show)


class _Teller:
    """Says what is being done with a shape: beside the bar on a terminal, else in lines of their own, the first as the
    shape begins."""

    def __init__(self, progress: Progress, task: TaskID, *, quiet: bool) -> None:
        self._progress = progress
        self._task = task
        self._tells_lines = not progress.console.is_terminal and not quiet
        self._tracker = ProgressTracker()
        self._lines: LineView | None = None
        self._shape = ""

    def on_shape(self, gemm: Gemm, number: int, of: int) -> None:
        self._shape, self._tracker, self._lines = str(gemm), ProgressTracker(), None
        if self._tells_lines:
            self._print(f"shape {number} of {of}")

    def on_event(self, event: Event) -> None:
        if isinstance(event, SearchStarted):
            self._tracker, self._lines = ProgressTracker(), None
        if self._tells_lines:
            self._lines = self._lines or LineView(self._tracker, self._print, interval=LOG_SECONDS)
            self._lines(event)
        else:
            self._tracker(event)
            self._progress.update(self._task, description=str(self._tracker.progress))

    def _print(self, line: str) -> None:
        self._progress.console.print(f"{self._shape}: {line}", highlight=False, markup=False, soft_wrap=True)


def _told_of_interrupt() -> None:
    console.err.print("ending: the rows until now are kept; --resume goes on from there")


def _regimes(text: str) -> list[Regime]:
    """Distinct regimes in the order given. Raises InvalidRequest."""
    regimes = list(dict.fromkeys(map(regime_named, names_of(text))))
    if not regimes:
        raise InvalidRequest(f"no regime is given; regimes are {', '.join(REGIMES)}")
    return regimes


def _summary(file: ResultsFile) -> dict[str, Any]:
    statuses = {s: sum(row["status"] == s for row in file.rows) for s in {row["status"] for row in file.rows}}
    return {
        "file": str(file.path),
        "summary": file.document["summary"],
        "rows": len(file.rows),
        "statuses": statuses,
    }


def names_of(text: str) -> list[str]:
    """The names in a list with commas; none for ``none``."""
    return [name for part in text.split(",") if (name := part.strip()) and name != "none"]


def _line(row: Row, kept: bool) -> str:
    head = f"{row['gemm']}  {row['variant']}  "
    if row["status"] != "measured":
        return f"{head}{row['status']}: {row['message']}"
    ratios = "  ".join(f"{entry['ratio']:.3f} x {name}" for name, entry in row["baselines"].items())
    beside = row["baselines"].get("default")
    best = "  (the default is the best)" if beside and beside["samples_us"] == row["samples_us"] else ""
    figures = f"{row['median_us']:.2f} us  {row['tflops']:.3g} TFLOP/s  {ratios}"
    return f"{head}{figures}{best}{'  (kept)' if kept else ''}"


def _show(title: str, summary: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("variant", "speed against", ">geometric mean", ">least", ">shapes", title=title)
    for variant, baselines in summary.items():
        for name, beside in baselines.items():
            table.add_row(variant, name, f"{beside['geomean']:.3f}", f"{beside['min']:.3f}", str(beside["count"]))
    console.out.print(table)
