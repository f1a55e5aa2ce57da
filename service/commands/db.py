"""``tirgemm db``: look into the tuning database, move records about, throw away what nothing needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.output_file import check_output
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.service.commands.collect import collect
from tirgemm.service.commands.tune import Data, Url
from tirgemm.service.commands.upkeep import age_seconds, backup, prune, repair, restore
from tirgemm.tuning_db.data_folder import existing_database, new_database, open_database

if TYPE_CHECKING:
    from tirgemm.tuning.records import Candidate

app = console.command_group("Inspect, export, import, merge, prune, back up and repair the tuning database.")
app.command()(collect)
for _upkeep in (prune, backup, restore, repair):
    app.command()(_upkeep)
# Parts of the problems that a new model is tried on, each by a model of the others.
TRAINING_FOLDS = 8
RecordsFile = Annotated[Path, typer.Argument(metavar="FILE", help="A records file, .jsonl or .jsonl.gz.")]


@app.command()
def info(data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """What is in the database: rows, candidates by status, devices, blobs."""
    from tirgemm.tuning_db.upkeep import admin

    with existing_database(data, db) as database:
        about = admin.info(database).to_json()

    def show() -> None:
        for name, value in about.items():
            if isinstance(value, dict):
                value = ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
            elif isinstance(value, list):
                value = ", ".join(map(str, value)) or "none"
            console.out.print(f"{name.replace('_', ' ')}: {value}")

    console.emit(as_json, about, show)


@app.command()
def check(data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Whether the database and every artifact in it are whole; exit code 1 where they are not."""
    from tirgemm.tuning_db.upkeep import admin

    with existing_database(data, db) as database:
        wrong = admin.check(database)
    if wrong:
        raise StoreError("; ".join(wrong))
    console.emit(as_json, {"whole": True}, lambda: console.out.print("the database and its artifacts are whole"))


@app.command("export")
def export_records(
    file: RecordsFile,
    artifacts: Annotated[bool, typer.Option("--artifacts", help="The kernels with their artifacts too.")] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Write every candidate with its samples to FILE."""
    from tirgemm.tuning_db import transfer

    check_output(file, "FILE", replaces=True)
    with existing_database(data, db) as database:
        header = transfer.export_records(database, file, artifacts=artifacts)
    counts = ", ".join(f"{count} {kind}s" for kind, count in header["counts"].items()) or "nothing"

    def show() -> None:
        console.out.print(f"{file}: {counts}")
        _show_missing(header["missing"])

    console.emit(as_json, {"file": str(file)} | header, show)


@app.command("import")
def import_records(file: RecordsFile, data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Merge the records of FILE: it only adds, and twice is the same as once."""
    from tirgemm.tuning_db import transfer
    from tirgemm.tuning_db.access.audit import note_command

    file.stat()  # of a file that is not there only this is told
    made = new_database(data, db)
    if made is not None or db is not None:
        transfer.require_records(file)  # what is no whole records file must not leave a new database behind
    with open_database(data, db) as database:
        merged = transfer.import_records(database, file).to_json()
        note_command(database, "db import", str(file.absolute()))
    _show_merged(as_json, merged, made)


@app.command()
def merge(
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another data folder, or the URL of a database.")],
    other_data: Annotated[
        Path | None, typer.Option("--other-data", metavar="DIR", help="Where OTHER's blobs are, if OTHER is a URL.")
    ] = None,
    artifacts: Annotated[bool, typer.Option(help="The kernels with their artifacts too.")] = True,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Merge another database into this one: it only adds."""
    from tirgemm.tuning_db import transfer
    from tirgemm.tuning_db.access.audit import note_command

    is_url = "://" in other
    if is_url and other_data is None:
        raise InvalidRequest(
            f"{other.partition('?')[0].split('@')[-1]} is a URL: say with --other-data where its blobs are"
        )
    made = new_database(data, db)
    with (
        existing_database(other_data if is_url else Path(other), other if is_url else None) as source,
        open_database(data, db) as database,
    ):
        merged = transfer.merge(database, source, artifacts=artifacts).to_json()
        note_command(database, "db merge", source.place)
    _show_merged(as_json, merged, made)


@app.command()
def gc(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only blobs that are older: 90d, 12h, 30m, or seconds.")
    ] = "3600",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Give the space back to the disk too.")] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Delete blobs that no kernel needs, and files that a kill left unfinished."""
    from tirgemm.tuning_db.access.audit import note_command
    from tirgemm.tuning_db.upkeep import admin

    seconds = age_seconds(older_than)
    with existing_database(data, db) as database:
        collected = asdict(admin.collect_garbage(database, older_than_s=seconds, dry_run=dry_run))
        if vacuum and not dry_run:
            admin.vacuum(database)
        if not dry_run:
            note_command(database, "db gc", f"{collected['blobs']} blobs")
    verb = "would be deleted" if dry_run else "deleted"
    console.emit(
        as_json,
        collected | {"dry_run": dry_run},
        lambda: console.out.print(f"{collected['blobs']} blobs ({collected['blob_bytes']} bytes) {verb}"),
    )


@app.command()
def train(
    device: Annotated[
        str | None, typer.Option(help="Key, name or architecture; default: the one device of the records.")
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option("--records", metavar="FILE", help="Of this records file, not of the database; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Default: in your data folder, where it counts."),
    ] = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Train the model that ranks configs of a class of devices before anything is measured."""
    from tirgemm.bench.results import environment
    from tirgemm.bench.suites import benchmarks_folder
    from tirgemm.families.common.ranking_model import user_file
    from tirgemm.tuning import ranking_training as training
    from tirgemm.tuning_db import transfer

    devices: list[Device] = []
    candidates: list[Candidate] = []
    if records:
        for path in records:
            devices += transfer.read_devices(path)
            candidates += transfer.read_candidates(path)
    else:
        with existing_database(data, db, or_give="a records file with --records") as database:
            devices, candidates = transfer.read_database(database)
    recorded = {candidate.device_key for candidate in candidates}
    devices = [each for each in devices if each.key in recorded]
    chosen = _device_of_records(devices, device)
    problems = training.problem_rows(candidates, chosen)
    training.require_enough(problems, chosen)
    path = out or user_file(chosen.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    check_output(path, "--output" if out else "the model's file", replaces=True)
    of_others = {
        other.key: training.problem_rows(candidates, other) for other in training.similar_devices(devices, chosen)
    }
    others = [rows for theirs in of_others.values() for rows in theirs]
    ranked = list(training.held_out(problems, chosen, TRAINING_FOLDS, others))
    home = benchmarks_folder()
    about = environment(chosen, home.parent if home else None)
    provenance = {
        "records": ", ".join(path.name for path in records) if records else "the tuning database",
        "records_sha256": training.records_sha256([*problems, *others]),
        "devices": {chosen.key: len(problems)} | {key: len(theirs) for key, theirs in of_others.items()},
        "held_out": training.scores(ranked),
        **{name: about[name] for name in ("tirgemm", "commit", "date")},
    }
    document = training.train(problems, chosen, provenance, others)
    size = training.write(document, path)

    def show() -> None:
        said = document["provenance"]
        console.out.print(f"{path}: {size} bytes, trained on {said['rows']} configs of {said['problems']} problems")
        for key, theirs in of_others.items():
            console.out.print(f"{len(theirs)} of the problems were measured on {key}, which is much like {chosen.key}")
        for regime, shares in said["held_out"].items():
            first = [
                f"{name} {shares[name]['geomean']:.3f} (least {shares[name]['least']:.3f})"
                for name in ("estimate", "model")
            ]
            console.out.print(
                f"{regime}, {shares['problems']} problems held out, the first choice over the fastest recorded: "
                f"{', '.join(first)}"
            )

    console.emit(as_json, {"file": str(path), "bytes": size} | document["provenance"], show)


def _device_of_records(devices: Sequence[Device], wanted: str | None) -> Device:
    """The device that is named, or the only one."""
    meant = [device for device in devices if wanted is None or wanted in device.names]
    if len({device.key for device in meant}) == 1:
        return meant[0]
    if not devices:
        raise InvalidRequest("the records are of no device; measure something first")
    asked = "no --device is given" if wanted is None else f"--device is {wanted!r:.80}"
    keys = ", ".join(sorted({device.key for device in devices}))
    raise InvalidRequest(f"{asked}; the records are of the devices {keys}: name one of them")


def _show_merged(as_json: bool, merged: dict[str, Any], made: Path | None) -> None:
    counts = {name: count for name, count in merged.items() if name != "missing"}
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    new = f" into a new tuning database in {made}" if made is not None else ""

    def show() -> None:
        console.out.print(f"merged{new}: {words}")
        _show_missing(merged["missing"])

    console.emit(as_json, merged, show)


def _show_missing(artifacts: Sequence[str]) -> None:
    for sha256 in artifacts:
        console.err.print(
            f"artifact {sha256} is lost or damaged: its kernels are left out", style="yellow", soft_wrap=True
        )
