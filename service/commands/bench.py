"""``tirgemm bench``: measure a suite of shapes into a results file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from service.commands.tune import Data, LockDir, Url
from service.data_dir import open_store, signer
from tirgemm import _console as console
from tirgemm._console import Json
from tirgemm.cli import Regime

if TYPE_CHECKING:
    from service.results import ResultsFile, Row


def bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A name from benchmarks/suites, or a suite's JSON file.")
    ],
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU, else the CPU.")] = None,
    regime: Regime = "sustained",
    variants: Annotated[str, typer.Option(help="default, tuned, or both with a comma.")] = "default,tuned",
    baselines: Annotated[
        str | None, typer.Option(help="Names with commas, or none; default: all that can be measured here.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Candidates a shape that tuning builds at most.")] = 32,
    seconds: Annotated[float, typer.Option(help="Seconds of search a shape at most.")] = 120.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    family: Annotated[list[str] | None, typer.Option(help="Only these families; repeatable.")] = None,
    commit: Annotated[
        str | None, typer.Option(help="The program's commit, where this copy of it has no history.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the rows that the file has, and add the others.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="The results file.")] = None,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    as_json: Json = False,
) -> None:
    """Measure every shape of SUITE: default and tuned, beside the baselines, verified, samples kept."""
    from service.bench import Bench
    from service.results import ResultsFile, device_folder, environment
    from service.suites import Suite, benchmarks_folder, find_suite
    from tirgemm.detect import device as detect
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.workbench import Workbench

    shapes = Suite.read(find_suite(suite))
    target, budget = detect(device), Budget(trials, seconds)
    home = benchmarks_folder()
    path = out or (home / "results" / device_folder(target) if home else Path()) / f"{shapes.name}.{regime}.json"
    names = _names(variants) or []
    asked = None if baselines is None else _names(baselines) or []
    about = environment(target, home.parent if home else None, commit)
    file = ResultsFile(path, shapes.name, regime, about, resume=resume)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        open_store(data, db) as store,
        Workbench(target, store, signer(data), lock_dir=lock_dir) as workbench,
        Progress(*columns, console=console.err, disable=as_json and not console.err.is_terminal) as progress,
    ):
        task = progress.add_task(f"{shapes.name}, {regime}, {target.model}", total=len(shapes.gemms) * len(names))

        def on_row(row: Row, kept: bool) -> None:
            progress.advance(task)
            progress.console.print(_line(row, kept), highlight=False, markup=False)

        runner = Bench(
            workbench, regime, baselines=asked, budget=budget, seed=seed, families=family,
            on_event=lambda kind, event: progress.update(task, description=_stage(kind, event)),
        )  # fmt: skip
        runner.run(shapes, names, file, on_row)
    document: dict[str, Any] = {"file": str(path), "summary": file.document["summary"], "rows": len(file.rows)}
    document["statuses"] = {
        s: sum(row["status"] == s for row in file.rows) for s in {row["status"] for row in file.rows}
    }
    console.emit(as_json, document, lambda: _show(file))


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip()) and name != "none"]


def _stage(kind: str, event: dict[str, Any]) -> str:
    best = event.get("best_us")
    return f"{kind} {event.get('trials', '')} best {best:.2f} us" if best else kind


def _line(row: Row, kept: bool) -> str:
    head = f"{row['gemm']}  {row['variant']}  "
    if row["status"] != "measured":
        return f"{head}{row['status']}: {row['message']}"
    ratios = "  ".join(f"{entry['ratio']:.3f} x {name}" for name, entry in row["baselines"].items())
    return f"{head}{row['median_us']:.2f} us  {row['tflops']:.3g} TFLOP/s  {ratios}{'  (kept)' if kept else ''}"


def _show(file: ResultsFile) -> None:
    table = Table("variant", "speed against", "geometric mean", "least", "shapes", title=str(file.path))
    for variant, baselines in file.document["summary"].items():
        for name, found in baselines.items():
            table.add_row(variant, name, f"{found['geomean']:.3f}", f"{found['min']:.3f}", str(found["count"]))
    console.out.print(table)
