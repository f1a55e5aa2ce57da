"""Compressed JSON files: written whole or not at all, the same value the same bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def write(path: Path, value: dict[str, Any]) -> None:
    """Write ``value``. Replaces an earlier file in one step; makes the folder."""
    text = json.dumps(value, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(gzip.compress(text, mtime=0))
    part.replace(path)


def read(path: Path) -> dict[str, Any]:
    """The value of a file. Raises OSError, EOFError or ValueError for one that cannot be read."""
    value: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return value
