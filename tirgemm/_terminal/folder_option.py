"""Parser of ``--data``: the data folder that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


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
