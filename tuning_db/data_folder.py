"""The data folder of one installation: its database with the blobs, and its signing key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tirgemm._user_folders import DATABASE, SIGNING_KEY, expanded, user_data
from tirgemm.errors import InvalidRequest

if TYPE_CHECKING:
    from tirgemm.artifact import Signer
    from tirgemm.tuning_db import Database
    from tirgemm.tuning_db.shipped.layered_store import LayeredStore


def database_file(data_dir: Path | None) -> Path:
    """The SQLite file of a data folder."""
    return _folder(data_dir) / DATABASE


def new_database(data_dir: Path | None, url: str | None) -> Path | None:
    """The data folder where opening its database would make a new one; None where that is there, or has a URL."""
    file = database_file(data_dir)
    return file.parent if url is None and not file.is_file() else None


def dependent_file(data_dir: Path | None, kernel_sha256: str) -> Path:
    """The file of what was made for dependent launches of the kernel of that hash."""
    return _folder(data_dir) / "dependent_launch" / f"{kernel_sha256}.tirgemm"


def open_database(
    data_dir: Path | None, url: str | None = None, limit_s: float | None = None, *, to_read: bool = False
) -> Database:
    """The database at ``url``, by default the SQLite file of the data folder, with the folder's blobs; made where
    absent. ``limit_s`` ends the wait for an answer of a database server, and for other writers of a file; ``to_read``
    opens a file that cannot be written, too."""
    from tirgemm.tuning_db import Database

    folder = _folder(data_dir)
    if url is None:
        return Database.embedded(folder, limit_s, to_read=to_read)
    return Database(url, folder, limit_s, to_read=to_read)


@contextmanager
def existing_database(data_dir: Path | None, url: str | None = None, *, or_give: str = "") -> Iterator[Database]:
    """The database of ``open_database``, which must be there: looking into a folder must not make one. Where it cannot
    be written it can be read.

    ``or_give`` is what the caller takes in place of a folder, for the InvalidRequest.
    """
    require_database(data_dir, url, f"give its folder with --data{f', or {or_give}' if or_give else ''}")
    with open_database(data_dir, url, to_read=True) as database:
        yield database


def require_database(data_dir: Path | None, url: str | None, advice: str) -> None:
    """Raise InvalidRequest, which ends with ``advice``, where a data folder holds no database, or a URL's file is
    missing.

    Whether a database server has the database is seen when it is opened.
    """
    folder = _folder(data_dir)
    if url is None:
        if not database_file(data_dir).is_file():
            raise InvalidRequest(f"{folder} holds no tuning database; {advice}")
        return
    if not folder.is_dir():
        raise InvalidRequest(f"there is no data folder {folder}; {advice}")
    backend, _, file = url.partition(":///")
    if backend.startswith("sqlite") and not Path(file.partition("?")[0]).is_file():
        raise InvalidRequest(f"there is no database file {file}; {advice}")


@contextmanager
def open_store(data_dir: Path | None, url: str | None = None, *, to_read: bool = False) -> Iterator[LayeredStore]:
    """The store on the database of ``open_database`` and the blobs of a data folder, with the shipped records
    beneath."""
    from tirgemm.tuning_db.shipped.layered_store import LayeredStore

    with open_database(data_dir, url, to_read=to_read) as database:
        yield LayeredStore(database)


def signer(data_dir: Path | None) -> Signer:
    """The key that artifacts of this data folder are signed with, made at first use."""
    from tirgemm.artifact import Signer

    return Signer.load_or_create(_folder(data_dir) / SIGNING_KEY)


def require_signing_key(data_dir: Path | None) -> Path:
    """The data folder, which must have a signing key. Raises InvalidRequest."""
    folder = _folder(data_dir)
    if not (folder / SIGNING_KEY).is_file():
        raise InvalidRequest(f"{folder} holds no signing key; give the folder of a service or a user with --data")
    return folder


def _folder(data_dir: Path | None) -> Path:
    return user_data() if data_dir is None else expanded(data_dir).absolute()
