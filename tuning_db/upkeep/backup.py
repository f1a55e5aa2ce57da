"""Backups of a tuning database while it is in use, and their restoration.

A backup is a folder: the SQLite file as it was at one moment, by SQLite's online backup API, the blobs that it names,
and ``backup.json``, written last. Of PostgreSQL only the blobs are copied; pg_dump is what backs a server up.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_values
from pathlib import Path
from typing import Any

from sqlalchemy import select

from tirgemm._user_folders import DATABASE, SIGNING_KEY
from tirgemm._version import __version__
from tirgemm.artifact.regular_file import read_regular, write_named
from tirgemm.artifact.signing_keys import copy_keys
from tirgemm.errors import InvalidRequest, StorageFull, StoreError, StoreUnavailable
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.blobs import BlobStore
from tirgemm.tuning_db.database import Database, damage_marker, translated
from tirgemm.tuning_db.models import ArtifactRow
from tirgemm.tuning_db.schema import HEAD, require_known
from tirgemm.tuning_db.sqlite_file import can_write, reading_uri
from tirgemm.tuning_db.table_list import table_list_file
from tirgemm.tuning_db.times import iso

MANIFEST = "backup.json"
# It lists the artifacts that were lost, of which there may be many.
MAX_MANIFEST_BYTES = 1 << 24
FORMAT = 1


@dataclass(frozen=True)
class BackedUp:
    """What a backup holds. ``missing`` artifacts were lost, or deleted while it was made; what names them is built anew
    when it is asked for."""

    database: bool
    blobs: int
    blob_bytes: int
    missing: tuple[str, ...]
    signing_key: bool
    at: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"missing": list(self.missing)}


@dataclass(frozen=True)
class Restored:
    """What came back: how many blobs, and whether the signing key is the backup's. ``lost`` artifacts of the backup are
    damaged or gone; what names them is built anew when it is asked for. ``valid_again`` are the ids of API keys that
    were revoked in the database that was there; ``keys_off`` says that it had keys, and the backup's has none."""

    blobs: int
    lost: int
    signing_key: bool
    valid_again: tuple[str, ...] = ()
    keys_off: bool = False


def backup(db: Database, folder: Path, *, blobs_only: bool = False, with_key: bool = False) -> BackedUp:
    """Write a backup into ``folder``, which must be new or empty. Writers go on meanwhile.

    ``blobs_only`` leaves the database out, as it must be for PostgreSQL; ``with_key`` adds the private signing key.
    Of a backup that fails nothing is left. Raises InvalidRequest and StoreError.
    """
    if not db.is_sqlite and not blobs_only:
        raise InvalidRequest(
            f"database {db.place} is PostgreSQL's: back it up with pg_dump, then its blobs with --blobs-only"
        )
    key = db.data_dir / SIGNING_KEY
    if with_key and not key.is_file():
        raise InvalidRequest(f"there is no signing key {key}: leave out --with-key")
    new = not folder.exists()
    _require_empty(folder)
    try:
        return _write(db, folder, blobs_only, with_key)
    except BaseException:
        # What is left of one that was broken off would keep a second one out of the folder.
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if new:
            folder.rmdir()
        raise


def _write(db: Database, folder: Path, blobs_only: bool, with_key: bool) -> BackedUp:
    at = iso()
    if blobs_only:
        with db.read() as connection:
            named = list(connection.execute(select(ArtifactRow.sha256).order_by(ArtifactRow.sha256)).scalars())
    else:
        copy = folder / DATABASE
        _copy_sqlite(Path(str(db.url.database)), copy)
        named = _named(copy)
    blobs, missing, size = BlobStore(folder / "blobs"), [], 0
    for sha256 in named:
        try:
            data = db.blobs.get(sha256)
        except StoreError:
            missing.append(sha256)
            continue
        blobs.put(data)
        size += len(data)
    if with_key:
        copy_keys(db.data_dir, folder)
    made = BackedUp(not blobs_only, len(named) - len(missing), size, tuple(missing), with_key, at)
    document = {"format": FORMAT, "tirgemm": __version__, "schema": HEAD} | made.to_json()
    write_named(folder / MANIFEST, (json.dumps(document, indent=2) + "\n").encode())
    return made


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a backup says that it holds. Raises InvalidRequest for a folder that is none, or whose making was broken
    off."""
    try:
        document = json.loads(read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r:.40}")
        if not isinstance(document["database"], bool):
            raise ValueError(f"database is {document['database']!r:.40}; it must be true or false")
        if type(document["blobs"]) is not int:
            raise ValueError(f"blobs is {document['blobs']!r:.40}; it must be an integer")
    except OSError as error:
        raise InvalidRequest(
            f"{folder} is no whole backup of a tuning database: {MANIFEST} cannot be read: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{folder} is no whole backup of a tuning database: {MANIFEST}: {error}") from error
    return dict(document)


def restore(folder: Path, data_dir: Path, *, replace: bool = False) -> Restored:
    """Put a backup into a data folder: the database, where it has one, the blobs, and the key where there is none.

    A database that is there is kept and refused with InvalidRequest unless ``replace``, which takes its place in one
    transaction, or as one file where it is damaged. Nobody may serve the folder meanwhile. Damaged blobs are left out.
    Raises InvalidRequest and StoreError, for a damaged database and one of a newer schema before anything is changed.
    """
    manifest, source, target = read_manifest(folder), folder / DATABASE, data_dir / DATABASE
    if manifest["database"]:
        if target.exists() and not replace:
            raise InvalidRequest(f"{data_dir} holds a tuning database; give an empty folder, or --replace to lose it")
        _require_whole(source)
    kept = BlobStore(folder / "blobs")
    whole = [blob.sha256 for blob in kept.list() if kept.is_whole(blob.sha256)]
    data_dir.mkdir(parents=True, exist_ok=True)
    blobs = BlobStore(data_dir / "blobs")
    for sha256 in whole:
        blobs.put(kept.get(sha256))
    key = folder / SIGNING_KEY
    own_key = key.is_file() and not (data_dir / SIGNING_KEY).exists()
    if own_key:
        copy_keys(folder, data_dir)
    restored = Restored(len(whole), max(manifest["blobs"] - len(whole), 0), own_key)
    if not manifest["database"]:
        return restored
    revoked = _revoked_keys(target)
    _replace_sqlite(source, target)
    with Database.embedded(data_dir) as database:  # brought to the current schema
        entries = KeyTable(database).entries()
    again = tuple(key.id for key in entries if revoked.get(key.id) and not key.fault(time.time()))
    return replace_values(restored, valid_again=again, keys_off=bool(revoked) and not entries)


def _revoked_keys(file: Path) -> dict[str, bool]:
    """The ids of the API keys of a database, each with whether it is revoked; none of one that cannot be read."""
    wanted = "SELECT id, revoked_at IS NOT NULL FROM api_keys"
    try:
        with translated(str(file)), closing(_open(file)) as connection:
            return {key_id: bool(revoked) for key_id, revoked in connection.execute(wanted)}
    except StoreError:
        return {}


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"{folder} is there already; a backup is written into a new folder")
    folder.mkdir(parents=True, exist_ok=True)


def _open(file: Path) -> sqlite3.Connection:
    if not file.is_file():
        raise StoreError(f"there is no database file {file}")
    uri = f"{file.absolute().as_uri()}?mode=rw" if can_write(file) else reading_uri(file)
    return sqlite3.connect(uri, uri=True, timeout=30)


def _copy_sqlite(source: Path, target: Path) -> None:
    """One state of a database into another file, in one step: readers and writers of the source go on."""
    with translated(str(source)), closing(_open(source)) as connection:
        connection.execute("PRAGMA schema_version").fetchall()
        # It is the copy's disk that is full or cannot be written.
        with translated(f"{target} (a copy of {source})"), closing(sqlite3.connect(target)) as copy:
            connection.backup(copy)


def _require_whole(file: Path) -> None:
    """Raise StoreError for the database of a backup that is damaged, is none of ours, or has a newer schema."""
    with closing(_open(file)) as connection, translated(str(file)):
        said = [row[0] for row in connection.execute("PRAGMA quick_check")]
        if said != ["ok"]:
            raise StoreError(f"the database {file} of a backup is damaged: {said[0]}")
        ours = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchone() if ours else None
    if revision is None:
        raise StoreError(f"{file} is no tuning database: it has no version of a schema")
    require_known(revision[0], str(file))


def _replace_sqlite(source: Path, target: Path) -> None:
    """``source``, which is whole, in the place of ``target``, which may be damaged or not there."""
    try:
        _copy_sqlite(source, target)
    except (StoreUnavailable, StorageFull):
        raise
    except StoreError:
        # SQLite writes no page of another database into a file that it cannot read.
        fresh = target.with_name(f"{target.name}.restored")
        fresh.unlink(missing_ok=True)
        _copy_sqlite(source, fresh)
        for end in ("-wal", "-shm", "-journal"):
            target.with_name(f"{target.name}{end}").unlink(missing_ok=True)
        fresh.replace(target)
    for of_the_old in (damage_marker(target), table_list_file(target)):
        of_the_old.unlink(missing_ok=True)


def _named(file: Path) -> list[str]:
    with translated(str(file)), closing(_open(file)) as connection:
        return [row[0] for row in connection.execute("SELECT sha256 FROM artifacts ORDER BY sha256")]
