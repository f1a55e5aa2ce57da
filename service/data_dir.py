"""The data folder of one installation: where it is by default, and its store and signing key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tirgemm.artifact import Signer
    from tuning_db import Database, SqlStore

SIGNING_KEY = "signing.key"


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/tirgemm``, by default ``~/.local/share/tirgemm``."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share") / "tirgemm"


def database_file(data_dir: Path | None) -> Path:
    """The SQLite file of a data folder."""
    from tuning_db.database import FILE_NAME

    return _folder(data_dir) / FILE_NAME


def open_database(data_dir: Path | None, url: str | None = None) -> Database:
    """The database at ``url``, by default the SQLite file of the data folder, with the folder's blobs; made where absent."""
    from tuning_db import Database

    return Database.embedded(_folder(data_dir)) if url is None else Database(url, _folder(data_dir))


@contextmanager
def open_store(data_dir: Path | None, url: str | None = None) -> Iterator[SqlStore]:
    """The store on the database (at ``url``, by default the folder's own) and the blobs of a data folder."""
    from tuning_db import SqlStore

    with open_database(data_dir, url) as database:
        yield SqlStore(database)


def signer(data_dir: Path | None) -> Signer:
    """The key that artifacts of this data folder are signed with, made at first use."""
    from tirgemm.artifact import Signer

    return Signer.load_or_create(_folder(data_dir) / SIGNING_KEY)


def _folder(data_dir: Path | None) -> Path:
    return (data_dir or default_data_dir()).expanduser().absolute()
