"""``tirgemm db prune | backup | restore | repair``: retention by age, backups while the service runs, putting one back,
and repair of a damaged database."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._user_folders import SERVER_LOCK, expanded, user_data
from tirgemm.errors import InvalidRequest
from tirgemm.service.commands.tune import Data, Url
from tirgemm.tuning_db.data_folder import database_file, existing_database, require_database

_AGE = re.compile(r"([0-9]+)([smhd]?)")
_MAX_AGE = 999_999_999
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only what is older: 90d, 12h, 30m, or seconds.")
    ],
    keep_best: Annotated[
        int, typer.Option("--keep-best", min=0, help="Keep so many of the fastest kernels of each problem at any age.")
    ] = 1,
    locked: Annotated[
        list[Path] | None, typer.Option("--locked", metavar="FILE", help="Keep what this lock file names, too.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Delete old kernels that are neither served, among the best, pinned nor locked, blobs that nothing names, old
    entries of the audit log, old batches that have ended, and what old jobs told while they ran. What was measured
    stays."""
    from tirgemm._client.lock_file import LockFile
    from tirgemm.tuning_db.access.audit import note_command
    from tirgemm.tuning_db.upkeep.prune import prune as prune_database

    seconds = age_seconds(older_than)
    hashes = {kernel.artifact_sha256 for file in locked or () for kernel in LockFile.read(file).kernels.values()}
    with existing_database(data, db) as database:
        pruned = prune_database(database, older_than_s=seconds, keep_best=keep_best, locked=hashes, dry_run=dry_run)
        if not dry_run:
            note_command(database, "db prune", f"older than {older_than}: {len(pruned.kernels)} kernels")
    verb = "would be deleted" if dry_run else "deleted"
    blobs = pruned.collected
    counts = f"{len(pruned.kernels)} kernels, {pruned.audit_entries} audit entries, {pruned.batches} batches, "
    counts += f"{pruned.events} events of jobs"
    words = f"{counts} and {blobs.blobs} blobs of no kernel ({blobs.blob_bytes} bytes) {verb}"
    document = {
        "kernels": list(pruned.kernels),
        "audit_entries": pruned.audit_entries,
        "batches": pruned.batches,
        "events": pruned.events,
        "damaged": list(pruned.damaged),
        "dry_run": dry_run,
    }

    def show() -> None:
        console.out.print(words)
        for damaged in pruned.damaged:
            console.err.print(damaged, style="yellow", markup=False)

    console.emit(as_json, document | asdict(blobs), show)


def backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the backup goes: a new folder.")],
    blobs_only: Annotated[
        bool, typer.Option("--blobs-only", help="The blobs alone: beside a pg_dump of PostgreSQL.")
    ] = False,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="The private signing key too: keep the backup secret then.")
    ] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Write the database as it is at one moment, and the blobs that it names, into FOLDER. A service may run."""
    from tirgemm.tuning_db.upkeep.backup import backup as back_up

    with existing_database(data, db) as database:
        made = back_up(database, folder, blobs_only=blobs_only, with_key=with_key)

    def show() -> None:
        parts = "" if made.database else "blobs alone, "
        console.out.print(f"{folder}: {parts}{made.blobs} blobs, {made.blob_bytes} bytes")
        for sha256 in made.missing:
            console.err.print(f"artifact {sha256} is lost, or was deleted meanwhile", style="yellow")

    console.emit(as_json, made.to_json() | {"folder": str(folder)}, show)


def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A backup.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Lose the database that is there, and put the backup's in its place.")
    ] = False,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Put a backup into a data folder that nobody serves. A service may run on any other one."""
    from tirgemm.service.jobs.data_lock import ProcessLock
    from tirgemm.tuning_db.access.audit import note_command
    from tirgemm.tuning_db.upkeep.backup import read_manifest
    from tirgemm.tuning_db.upkeep.backup import restore as put_back

    target = user_data() if data is None else expanded(data).absolute()
    has_database = read_manifest(folder)["database"]
    if has_database and db is not None:
        raise InvalidRequest(
            f"{folder} holds a SQLite file, which goes into the data folder: leave out --db and TIRGEMM_DB"
        )
    target.mkdir(parents=True, exist_ok=True)
    with ProcessLock(target / SERVER_LOCK, f"data folder {target}"):
        restored = put_back(folder, target, replace=replace)
        if has_database:
            with existing_database(target) as database:
                note_command(database, "db restore", str(folder.absolute()))

    def show() -> None:
        console.out.print(f"{target}: {restored.blobs} blobs are back")
        if restored.lost:
            words = "are damaged or gone; kernels are built again when they are asked for"
            console.err.print(f"{restored.lost} artifacts of the backup {words}", style="yellow")
        for key_id in restored.valid_again:
            words = f"API key {key_id} was revoked here and is valid again; end it with `tirgemm keys revoke {key_id}`"
            console.err.print(words, style="yellow", markup=False, soft_wrap=True)
        if restored.keys_off:
            words = "the backup has no API key, and the database that was here had: nobody is asked for one any more"
            console.err.print(words, style="yellow", soft_wrap=True)

    console.emit(as_json, asdict(restored) | {"data": str(target)}, show)


def repair(data: Data = None, db: Url = None, as_json: Json = False) -> None:
    """Repair the damaged SQLite database of a data folder that nobody serves: a new one of every row that can be read.
    The damaged file is kept beside it."""
    from tirgemm.service.jobs.data_lock import ProcessLock
    from tirgemm.tuning_db.upkeep.repair import repair as repair_database

    if db is not None:
        raise InvalidRequest("what is repaired is the SQLite file of a data folder: leave out --db and TIRGEMM_DB")
    file = database_file(data)
    require_database(data, None, "give its folder with --data")
    with ProcessLock(file.with_name(SERVER_LOCK), f"data folder {file.parent}"):
        done = repair_database(file, file.parent)

    console.emit(as_json, done.to_json(), lambda: console.out.print(str(done), markup=False, soft_wrap=True))


def age_seconds(text: str) -> float:
    """The seconds of ``90d``, ``12h``, ``30m``, ``45s`` or ``45``. Raises InvalidRequest."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"the age is {text!r:.40}; it must be a whole number with d, h, m or s behind it, as 90d")
    digits = match[1].lstrip("0") or "0"
    if len(digits) > len(str(_MAX_AGE)):
        raise InvalidRequest(f"the age is {text!r:.40}; its number must be at most {_MAX_AGE}")
    return float(int(digits) * _SECONDS[match[2]])
