"""Parsers of ``--data`` and ``--lock-dir``: the folders that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tirgemm._user_folders import lock_folder
from tirgemm.errors import InvalidRequest


def data_folder(text: Any) -> Path:
    """The folder that ``--data`` names. Raises BadParameter for none, and for a name that no database can hold."""
    name = str(text)
    if not name.strip():
        raise typer.BadParameter("it is empty; name a folder, such as . for the current one, or leave the option out")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{name!r:.200} is not UTF-8 text; name another folder") from error
    return Path(name)


def folder_of_locks(text: Any) -> Path:
    """The folder that ``--lock-dir`` names. Raises BadParameter for one that is not absolute."""
    try:
        return lock_folder(Path(str(text)))
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from error
