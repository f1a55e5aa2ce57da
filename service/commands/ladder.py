"""``tirgemm ladder``: every rung of the simt family beside cuBLAS, measured or from stored results, as a tree with
bars."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.output_file import check_output
from tirgemm._terminal.unused_options import require_unused
from tirgemm.cli import RegimeOption
from tirgemm.errors import InvalidRequest, Unsupported
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.service.commands.bench import names_of
from tirgemm.service.commands.tune import Data, LockDir, Url
from tirgemm.tuning_db.data_folder import open_store, signer

if TYPE_CHECKING:
    from tirgemm.bench.ladder_report import RungFigures
    from tirgemm.bench.ladder_results import StoredLadder
    from tirgemm.bench.ladder_run import LadderRun
    from tirgemm.bench.results import ResultsFile, Row
    from tirgemm.device import Device

    Ladder = tuple[Gemm, list[RungFigures], dict[str, float]]

DTYPE, LAYOUT = "f32", "nn"


def ladder(
    m: Annotated[int | None, typer.Argument(metavar="M", help="Rows of D.")] = None,
    n: Annotated[int | None, typer.Argument(metavar="N", help="Columns of D.")] = None,
    k: Annotated[int | None, typer.Argument(metavar="K", help="Elements of a sum.")] = None,
    dtype: Annotated[str, typer.Option(help="f32, f16 or bf16.")] = DTYPE,
    layout: Annotated[str, typer.Option(help="nn, nt, tn or tt.")] = LAYOUT,
    alpha_beta: Annotated[
        bool, typer.Option("--alpha-beta", help="D = alpha A B + beta C, as in the articles.")
    ] = False,
    suite: Annotated[str | None, typer.Option(help="The problems of a suite instead, into its results file.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda, cuda:1; with --dry-run sm_80 and so on too; default: the first GPU.")
    ] = None,
    regime: RegimeOption = "sustained",
    baselines: Annotated[
        str | None, typer.Option(help="Names with commas, or none; default: cuBLAS through PyTorch and cuBLASLt.")
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="The fastest config of the database's records is one more rung, tuned.")
    ] = False,
    measure: Annotated[
        float, typer.Option(min=0, help="Seconds that a problem is measured for; slow rungs take longer.")
    ] = 1.0,
    limit: Annotated[
        float, typer.Option(min=0, help="Seconds that a rung's launches may take; a slower one is left out.")
    ] = 180.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure nothing: the tree, what changes and what a rung loads.")
    ] = False,
    from_results: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER|shipped",
            help="Draw stored results, without a GPU: a file, a folder's, or those that come with the package.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    commit: Annotated[
        str | None, typer.Option(help="The program's commit, where this copy of it has no history.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the problems that the file has.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page here.")] = None,
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="Write a results file here.")] = None,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    as_json: Json = False,
) -> None:
    """Measure every rung of the simt ladder for A of M x K and B of K x N, beside cuBLAS, each verified first; or draw
    what was measured."""
    from tirgemm.bench.ladder_report import described

    check_output(html, "--html")
    measured = {"--output": out, "--recorded": recorded, "--baselines": baselines, "--resume": resume}
    if from_results is not None:
        others = {"--dry-run": dry_run, "--suite": suite, "--device": device}
        require_unused("--from-results measures nothing", *(others | measured).items())
        wanted = None if (m, n, k) == (None, None, None) else _problems(m, n, k, dtype, layout, alpha_beta, None)
        _emit([_of_file(stored, wanted) for stored in _stored_ladders(from_results, wanted)], html, as_json)
        return
    gemms = _problems(m, n, k, dtype, layout, alpha_beta, suite)
    asked = regime_named(regime)
    if dry_run:
        require_unused("--dry-run measures nothing", *measured.items())
    elif suite is None and out is None:
        require_unused("without --suite or --output there is no file to go on with", ("--resume", resume))
    target = _target(device, dry_run)
    if dry_run:
        ladders: list[Ladder] = [(gemm, described(gemm, target, asked), {}) for gemm in gemms]
        place = f"not measured; configs for {target.name} ({target.model})"
    else:
        from tirgemm.bench.ladder_run import LadderRun
        from tirgemm.families.simt.ladder import RUNGS, TUNED
        from tirgemm.tuning.workbench import Workbench

        file = _file(target, suite, asked, commit, out, resume)
        names = None if baselines is None else names_of(baselines)
        with (
            open_store(data, db) as store,
            Workbench(target, store, signer(data), lock_dir=lock_dir, timeout_s=max(60.0, limit)) as workbench,
        ):
            runner = LadderRun(workbench, baselines=names, seconds=measure, limit_s=limit, seed=seed, recorded=recorded)
            rows = _measured(runner, gemms, asked, file)
        if file is not None and suite is not None:
            file.arrange(gemms, [rung.name for rung in (*RUNGS, TUNED)])
        ladders = [_ladder(gemm, rows) for gemm in gemms]
        place = f"{target.model}, {regime}"
    _emit([PlacedLadders(place, target.to_json(), asked, ladders)], html, as_json)


@dataclass(frozen=True, slots=True)
class PlacedLadders:
    """Ladders that were taken together: where, in words; the ``device``, as JSON has it; in what regime."""

    place: str
    device: dict[str, Any]
    regime: Regime
    ladders: list[Ladder]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        ladders = [
            {"gemm": str(gemm), "baselines_tflops": theirs, "rungs": [entry.to_json() for entry in entries]}
            for gemm, entries, theirs in self.ladders
        ]
        return {"device": self.device, "regime": self.regime, "place": self.place, "ladders": ladders}


def _emit(groups: list[PlacedLadders], html: Path | None, as_json: bool) -> None:
    """Print the ladders, as one document if so asked (a list of several results files'), and write the page."""
    if html is not None:
        from tirgemm.artifact.regular_file import write_named
        from tirgemm.service.views.ladder_page import page

        write_named(html, page([(group.ladders, group.place) for group in groups]).encode())

    def show() -> None:
        from tirgemm.service.views.ladder_terminal import view

        for group in groups:
            console.out.print(group.place)
            for gemm, entries, theirs in group.ladders:
                console.out.print(view(gemm, entries, theirs))
        if html is not None:
            console.out.print(f"written: {html}")

    documents = [group.to_json() for group in groups]
    console.emit(as_json, documents[0] if len(documents) == 1 else {"results": documents}, show)


def _stored_ladders(where: str, wanted: list[Gemm] | None) -> list[StoredLadder]:
    """The stored ladders that have one of the ``wanted`` problems, or any. Raises InvalidRequest where none has."""
    from tirgemm.bench.ladder_results import stored_ladders

    stored = stored_ladders(where)
    having = [each for each in stored if wanted is None or set(wanted) & set(each.gemms)]
    if not having:
        known = ", ".join(dict.fromkeys(str(gemm) for each in stored for gemm in each.gemms))
        raise InvalidRequest(f"{where} has no ladder of {wanted and wanted[0]}; it has {known}")
    return having


def _of_file(stored: StoredLadder, wanted: list[Gemm] | None) -> PlacedLadders:
    gemms = [gemm for gemm in stored.gemms if wanted is None or gemm in wanted]
    device = {"model": stored.environment["device"], "key": stored.environment["device_key"]}
    return PlacedLadders(stored.place, device, stored.regime, [_ladder(gemm, list(stored.rows)) for gemm in gemms])


def _problems(
    m: int | None, n: int | None, k: int | None, dtype: str, layout: str, alpha_beta: bool, suite: str | None
) -> list[Gemm]:
    """Raises InvalidRequest, InvalidGemm."""
    from tirgemm.bench.suites import suite_named

    if suite is not None:
        if m is not None:
            raise InvalidRequest(f"M N K and --suite {suite} are both given; give one of them")
        require_unused(
            f"--suite {suite} has problems of its own",
            ("--alpha-beta", alpha_beta),
            ("--dtype", dtype != DTYPE),
            ("--layout", layout != LAYOUT),
        )
        return list(suite_named(suite).gemms)
    if m is None or n is None or k is None:
        raise InvalidRequest("give M, N and K, or --suite")
    return [Gemm(m=m, n=n, k=k, dtype=dtype, layout=layout, alpha=alpha_beta, beta=alpha_beta)]


def _target(name: str | None, dry_run: bool) -> Device:
    """The GPU; for a dry run any architecture, by default the first GPU or an H200. Raises Unsupported."""
    from tirgemm.detect import device as detect
    from tirgemm.hardware import ARCHITECTURES, named_device

    if dry_run and name is None and detect(None).kind != "cuda":
        return named_device("sm_90a")
    target = detect(name)
    if target.kind != "cuda":
        instead = f"name one of {', '.join(ARCHITECTURES)}" if dry_run else "--dry-run shows it without"
        raise Unsupported(f"the ladder's kernels run on NVIDIA GPUs, not on {target.kind} {target.model}; {instead}")
    if not dry_run and not target.present:
        raise Unsupported(f"{target.only_named}: use --dry-run")
    return target


def _file(
    target: Device, suite: str | None, regime: Regime, commit: str | None, out: Path | None, resume: bool
) -> ResultsFile | None:
    from tirgemm.bench.results import ResultsFile, device_folder, environment
    from tirgemm.bench.suites import benchmarks_folder

    home = benchmarks_folder()
    if out is None and suite is None:
        return None
    folder = home / "results" / device_folder(target) if home else Path()
    name = Path(suite).stem if suite is not None else "ladder"
    about = environment(target, home.parent if home else None, commit)
    return ResultsFile(out or folder / f"{name}.{regime}.json", name, regime, about, resume=resume)


def _measured(runner: LadderRun, gemms: list[Gemm], regime: Regime, file: ResultsFile | None) -> list[Row]:
    """The rows of every problem; those of a file that is resumed are kept."""
    from tirgemm.families.simt.ladder import RUNGS, TUNED

    rows: list[Row] = list(file.rows) if file is not None else []
    wanted = {rung.name for rung in ((*RUNGS, TUNED) if runner.recorded else RUNGS)}
    with console.err.status("", spinner="line") as status:
        for gemm in gemms:
            known = [row for row in rows if row["gemm"] == str(gemm)]
            measured = any(row["status"] == "measured" for row in known)
            if measured and wanted <= {row["variant"] for row in known}:
                continue
            outcome = runner.measure(gemm, regime, rows, status.update)
            rows = [row for row in rows if row["gemm"] != str(gemm)] + outcome
            if file is not None:
                file.put(*outcome)
    return rows


def _ladder(gemm: Gemm, rows: list[Row]) -> Ladder:
    """The entries of a problem, and the baselines' TFLOP/s from the medians of the same run."""
    from tirgemm.bench.ladder_report import reported

    entries = reported(rows, gemm)
    mine = [row for row in rows if row["gemm"] == str(gemm) and row["status"] == "measured"]
    rungs = {entry.step.name for entry in entries}
    theirs = {
        name: gemm.flops / statistics.median(beside["samples_us"]) / 1e6
        for row in mine[:1]
        for name, beside in row["baselines"].items()
        if name not in rungs
    }
    return gemm, entries, theirs
