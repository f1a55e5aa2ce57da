"""The user's own folders for tirgemm, where the XDG base directory specification puts them."""

from __future__ import annotations

import os
from pathlib import Path

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
    return Path(named).expanduser().absolute() if named else _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / default) / "tirgemm"
