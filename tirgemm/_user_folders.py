"""The user's own folders for tirgemm, where the XDG base directory specification puts them."""

from __future__ import annotations

import os
from pathlib import Path

from tirgemm.errors import InvalidRequest

# Files of a data folder: SQLite's database, the private key that its artifacts are signed with, the signed list of its
# valid keys and of what is revoked, what a running server holds, and what a command holds that changes keys or list.
DATABASE = "tirgemm.db"
SIGNING_KEY = "signing.key"
REVOCATIONS = "revocations.json"
SERVER_LOCK = "server.lock"
KEYS_LOCK = "keys.lock"


def user_config() -> Path:
    """``$XDG_CONFIG_HOME/tirgemm``, by default ``~/.config/tirgemm``: whose keys the user trusts."""
    return _folder("XDG_CONFIG_HOME", ".config")


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/tirgemm``, by default ``~/.cache/tirgemm``: what can be downloaded again."""
    return _folder("XDG_CACHE_HOME", ".cache")


def user_data() -> Path:
    """``$TIRGEMM_DATA``, else ``$XDG_DATA_HOME/tirgemm``, by default ``~/.local/share/tirgemm``: database and signing
    key."""
    named = os.environ.get("TIRGEMM_DATA", "")
    return expanded(Path(named)).absolute() if named else _folder("XDG_DATA_HOME", ".local/share")


def expanded(path: Path, advice: str = "give the whole path") -> Path:
    """The path with the home folder in place of ``~`` or ``~user``. Raises InvalidRequest, with ``advice``, for a user
    that is not there."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise InvalidRequest(f"{str(path)!r:.200}: {str(error).rstrip('.')}; {advice}") from error


def lock_folder(path: Path) -> Path:
    """A folder of host-wide locks that a user names. Raises InvalidRequest for one that depends on where a process is
    started: whoever measures on the machine must mean the same."""
    folder = expanded(path)
    if not folder.is_absolute():
        raise InvalidRequest(f"lock folder {str(path)!r:.200} is not absolute; give its whole path")
    return folder


def _folder(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else expanded(Path("~") / default, f"set {variable} or HOME")) / "tirgemm"
