"""``tirgemm db``: look into the tuning database, move records about, throw away what nothing needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.service.commands.tune import Data, Url
from tirgemm.tuning_db.data_folder import database_file, existing_database, open_database

app = typer.Typer(
    help="Inspect, export, import and merge the tuning database.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
RecordsFile = Annotated[Path, typer.Argument(metavar="FILE", help="A records file, .jsonl or .jsonl.gz.")]


@app.command()
def info(data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """What is in the database: rows, candidates by status, devices, blobs."""
    from tirgemm.tuning_db import admin

    with existing_database(data, db) as database:
        found = admin.info(database).to_json()

    def show() -> None:
        for name, value in found.items():
            if isinstance(value, dict):
                value = ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
            elif isinstance(value, list):
                value = ", ".join(map(str, value)) or "none"
            console.out.print(f"{name.replace('_', ' ')}: {value}")

    console.emit(as_json, found, show)


@app.command()
def check(data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Whether the database and every artifact in it are whole; exit code 1 where they are not."""
    from tirgemm.tuning_db import admin

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

    with existing_database(data, db) as database:
        header = transfer.export_records(database, file, artifacts=artifacts)
    counts = ", ".join(f"{count} {kind}s" for kind, count in header["counts"].items()) or "nothing"
    console.emit(as_json, {"file": str(file)} | header, lambda: console.out.print(f"{file}: {counts}"))


@app.command("import")
def import_records(file: RecordsFile, data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Merge the records of FILE: it only adds, and twice is the same as once."""
    from tirgemm.tuning_db import transfer

    file.stat()  # a file that is not there must not leave a new database behind
    made = _made(data, db)
    with open_database(data, db) as database:
        merged = transfer.import_records(database, file).to_json()
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

    is_url = "://" in other
    if is_url and other_data is None:
        raise InvalidRequest(f"{other.split('@')[-1]} is a URL: say with --other-data where its blobs are")
    made = _made(data, db)
    with (
        existing_database(other_data if is_url else Path(other), other if is_url else None) as source,
        open_database(data, db) as database,
    ):
        merged = transfer.merge(database, source, artifacts=artifacts).to_json()
    _show_merged(as_json, merged, made)


@app.command()
def gc(
    older_than: Annotated[float, typer.Option(min=0, help="Only blobs older than this many seconds.")] = 3600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Give the space back to the disk too.")] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Delete blobs that no kernel needs, and files that a kill left unfinished."""
    from tirgemm.tuning_db import admin

    with existing_database(data, db) as database:
        found = asdict(admin.collect(database, older_than_s=older_than, dry_run=dry_run))
        if vacuum and not dry_run:
            admin.vacuum(database)
    verb = "would be deleted" if dry_run else "deleted"
    console.emit(
        as_json,
        found | {"dry_run": dry_run},
        lambda: console.out.print(f"{found['blobs']} blobs ({found['blob_bytes']} bytes) {verb}"),
    )


def _made(data: Path | None, url: str | None) -> Path | None:
    """The data folder where opening its database would make a new one."""
    file = database_file(data)
    return file.parent if url is None and not file.is_file() else None


def _show_merged(as_json: bool, merged: dict[str, Any], made: Path | None) -> None:
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in merged.items())
    new = f" into a new tuning database in {made}" if made is not None else ""
    console.emit(as_json, merged, lambda: console.out.print(f"merged{new}: {words}"))
