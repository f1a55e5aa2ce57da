"""``tirgemm signing``: the keys that artifacts of a data folder are signed with: list, rotate, revoke."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm.service.commands.tune import Data

if TYPE_CHECKING:
    from tirgemm.artifact.signing_keys import SigningKeys

# How long a command waits for another one that changes the keys.
CHANGE_SECONDS = 10.0

app = console.command_group(
    "List, rotate and revoke the keys that artifacts are signed with; revoke artifacts and kernels."
)


@app.command("list")
def list_keys(data: Data = None, as_json: Json = False) -> None:
    """The valid keys, the current one first, and what is revoked."""
    from tirgemm.artifact.signing_keys import SigningKeys
    from tirgemm.tuning_db.data_folder import require_signing_key

    _tell(SigningKeys(require_signing_key(data)), as_json)


@app.command()
def rotate(data: Data = None, as_json: Json = False) -> None:
    """Make a new key to sign with; artifacts of the old one stay valid, and it vouches for the new one.

    The service and its workers must be stopped: they sign with the key that they started with.
    """
    from tirgemm._user_folders import SERVER_LOCK
    from tirgemm.service.jobs.data_lock import ProcessLock

    with _changing(data) as keys:
        with ProcessLock(keys.folder / SERVER_LOCK, f"data folder {keys.folder}"):
            keys.rotate()
        _tell(keys, as_json)
    _note(keys, "signing rotate", keys.current.public)


@app.command()
def revoke(
    what: Annotated[
        str, typer.Argument(metavar="KEY|SHA256", help="A former key (ed25519:...), an artifact, or a kernel.")
    ],
    reason: Annotated[str, typer.Option(help="Told to whoever asks for it.")] = "",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Revoke a former key, an artifact or a kernel for good: the folder's service answers with it no more, and clients
    refuse it from their next request on."""
    with _changing(data) as keys:
        keys.revoke(what, reason)
        _tell(keys, as_json)
    _note(keys, "signing revoke", what)


@contextmanager
def _changing(data: Path | None) -> Iterator[SigningKeys]:
    """The keys as they are once every other command that changes them is done; none begins before this one ends."""
    from tirgemm._extras import require
    from tirgemm._user_folders import KEYS_LOCK
    from tirgemm.artifact.signing_keys import SigningKeys
    from tirgemm.service.jobs.data_lock import ProcessLock
    from tirgemm.tuning_db.data_folder import database_file, require_signing_key

    folder = require_signing_key(data)
    if database_file(folder).is_file():  # which has the audit log
        require("`tirgemm signing` beside a database", "tune")
    with ProcessLock(folder / KEYS_LOCK, f"the list of keys in {folder}", wait_s=CHANGE_SECONDS):
        yield SigningKeys(folder)


def _note(keys: SigningKeys, action: str, what: str) -> None:
    """Write it into the audit log of the folder's SQLite database, where there is one that can be opened."""
    from tirgemm.errors import TirgemmError
    from tirgemm.tuning_db.data_folder import database_file, existing_database

    if not database_file(keys.folder).is_file():
        return
    from tirgemm.tuning_db.access.audit import logger, note_command  # which needs the extra that _changing has required

    try:
        with existing_database(keys.folder) as database:
            note_command(database, action, what)
    except TirgemmError as error:
        logger.warning("%s is not in the audit log: %s", action, error)


def _tell(keys: SigningKeys, as_json: bool) -> None:
    revoked = {} if keys.listed is None else keys.listed.revoked
    document = {
        "keys": list(keys.public),
        "revoked": revoked,
        "number": 0 if keys.listed is None else keys.listed.number,
    }

    def show() -> None:
        for key in keys.public:
            console.out.print(f"{key} {'signs' if key == keys.current.public else 'is valid'}", soft_wrap=True)
        for name, reason in revoked.items():
            console.out.print(f"{name} is revoked{f': {reason}' if reason else ''}", markup=False, soft_wrap=True)

    console.emit(as_json, document, show)
