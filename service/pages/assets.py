"""Assets of the pages: style sheets, scripts and pictures, each at an address that holds the hash of its bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "files"
PREFIX = "/assets/"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file; ``digest`` is the start of its SHA-256 in hexadecimal."""

    name: str
    content: bytes
    digest: str
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Every asset by its name, the path below the folder of assets."""
    return {asset.name: asset for path in sorted(ASSETS.rglob("*")) if path.suffix in _TYPES for asset in [_read(path)]}


def asset_address(name: str) -> str:
    """The address of an asset. Raises KeyError for a name that no asset has."""
    asset = assets()[name]
    return f"{PREFIX}{asset.digest}/{asset.name}"


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    name = path.relative_to(ASSETS).as_posix()
    return Asset(name, content, hashlib.sha256(content).hexdigest()[:16], _TYPES[path.suffix])
