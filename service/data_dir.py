"""The data folder of one installation: where it is by default, and its store and signing key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tirgemm.artifact import Signer
    from tuning_db import SqlStore

SIGNING_KEY = "signing.key"


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/tirgemm``, by default ``~/.local/share/tirgemm``."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share") / "tirgemm"


@contextmanager
def open_store(data_dir: Path | None) -> Iterator[SqlStore]:
    """The store on the SQLite database and the blobs of a data folder, made where absent."""
    from tuning_db import Database, SqlStore

    with Database.embedded((data_dir or default_data_dir()).expanduser()) as database:
        yield SqlStore(database)


def signer(data_dir: Path | None) -> Signer:
    """The key that artifacts of this data folder are signed with, made at first use."""
    from tirgemm.artifact import Signer

    return Signer.load_or_create((data_dir or default_data_dir()).expanduser() / SIGNING_KEY)
