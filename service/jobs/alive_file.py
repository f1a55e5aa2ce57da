"""The file that a worker touches while its work goes on, for whoever ends one that hangs."""

from __future__ import annotations

from pathlib import Path

from tirgemm.errors import InvalidRequest


def require_alive_file(file: Path | None) -> None:
    """Touch the file, where there is to be one. Raises InvalidRequest where it cannot be: its worker would be ended
    again and again."""
    if file is None:
        return
    try:
        file.touch()
    except OSError as error:
        words = f"TIRGEMM_ALIVE_FILE is {str(file)!r:.200}, which cannot be touched: {error.strerror}"
        raise InvalidRequest(f"{words}; name a file in a folder that this user can write") from error
