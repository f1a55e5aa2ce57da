"""``tirgemm db``: look into the tuning database, move records about, throw away what nothing needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.tune import Data, Url
from service.data_dir import open_database
from tirgemm import _console as console
from tirgemm._console import Json
from tirgemm.errors import InvalidRequest, StoreError

if TYPE_CHECKING:
    from tuning_db import Database

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
    from tuning_db import admin

    with _existing(data, db) as database:
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
    from tuning_db import admin

    with _existing(data, db) as database:
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
    from tuning_db import transfer

    with _existing(data, db) as database:
        header = transfer.export_records(database, file, artifacts=artifacts)
    counts = ", ".join(f"{count} {kind}s" for kind, count in header["counts"].items()) or "nothing"
    console.emit(as_json, {"file": str(file)} | header, lambda: console.out.print(f"{file}: {counts}"))


@app.command("import")
def import_records(file: RecordsFile, data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Merge the records of FILE: it only adds, and twice is the same as once."""
    from tuning_db import transfer

    with open_database(data, db) as database:
        merged = transfer.import_records(database, file).to_json()
    _show_merged(as_json, merged)


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
    from tuning_db import transfer

    is_url = "://" in other
    if is_url and other_data is None:
        raise InvalidRequest(f"{other.split('@')[-1]} is a URL: say with --other-data where its blobs are")
    with (
        open_database(data, db) as database,
        _existing(other_data if is_url else Path(other), other if is_url else None) as source,
    ):
        merged = transfer.merge(database, source, artifacts=artifacts).to_json()
    _show_merged(as_json, merged)


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
    from tuning_db import admin

    with _existing(data, db) as database:
        found = asdict(admin.collect(database, older_than_s=older_than, dry_run=dry_run))
        if vacuum and not dry_run:
            admin.vacuum(database)
    verb = "would be deleted" if dry_run else "deleted"
    console.emit(
        as_json,
        found | {"dry_run": dry_run},
        lambda: console.out.print(f"{found['blobs']} blobs ({found['blob_bytes']} bytes) {verb}"),
    )


@contextmanager
def _existing(data: Path | None, url: str | None) -> Iterator[Database]:
    """A database that is there: looking into a folder must not make one."""
    from service.data_dir import database_file

    if url is None and not database_file(data).exists():
        raise InvalidRequest(f"{database_file(data).parent} holds no tuning database; give its folder with --data")
    with open_database(data, url) as database:
        yield database


def _show_merged(as_json: bool, merged: dict[str, Any]) -> None:
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in merged.items())
    console.emit(as_json, merged, lambda: console.out.print(f"merged: {words}"))
