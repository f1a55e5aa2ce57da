"""Rebuilding of lost rows of problems, devices and artifacts, from an index, kernels, jobs and blobs that name them.

All else refers to these few rows, and would be lost with them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tirgemm.errors import InvalidGemm
from tirgemm.gemm import Gemm

_GEMM = ("text", "m_min", "m_max", "n", "k", "batch", "dtype", "layout")
_DEVICE = ("key", "description", "updated_at")
_ARTIFACT = ("sha256", "nbytes", "kernel_sha256", "created_at")
_TELLS_OF_DEVICES = (("kernels", "stored_at"), ("jobs", "created_at"))
_TELLS_OF_ARTIFACTS = ("artifact_sha256", "kernel_sha256", "stored_at")
_SHA256 = re.compile("[0-9a-f]{64}")


def gemm_rows(rows: Iterable[tuple[Any, ...]], texts: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, ...]]:
    """The rows of problems, and of those that only the index of their texts knows; where their texts are of one."""
    for number, text in chain(((row[0], row[2]) for row in rows), texts):
        gemm = _parsed(text)
        if gemm is not None and isinstance(number, int):
            yield number, number, text, *(getattr(gemm, name) for name in _GEMM[1:])


def rebuild_rows(fresh: sqlite3.Connection, blobs: Path) -> None:
    """Add to a new database, which has every row that could be read: devices, as the newest kernel or job describes
    them; artifacts that kernels name, whose files are in ``blobs``."""
    if _columns_of(fresh, "devices") == _DEVICE:
        for table, at in _TELLS_OF_DEVICES:
            if {"device_key", "device", at} <= set(_columns_of(fresh, table)):
                told = fresh.execute(f'SELECT device_key, device, "{at}" FROM "{table}" ORDER BY seq DESC').fetchall()
                # First those that are of the very device.
                told.sort(key=lambda row: _key_of(row[1]) != row[0])
                put_rows(fresh, "devices", _DEVICE, told)
    if _columns_of(fresh, "artifacts") == _ARTIFACT and set(_TELLS_OF_ARTIFACTS) <= set(_columns_of(fresh, "kernels")):
        named = fresh.execute(f"SELECT {', '.join(_TELLS_OF_ARTIFACTS)} FROM kernels ORDER BY seq").fetchall()
        told = [(sha256, _size(blobs, sha256), *more) for sha256, *more in named if _SHA256.fullmatch(sha256)]
        put_rows(fresh, "artifacts", _ARTIFACT, told)


def put_rows(fresh: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    """Add those rows that a table of the new database does not have yet."""
    names = ", ".join(f'"{column}"' for column in columns)
    places = ", ".join("?" * len(columns))
    fresh.executemany(f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({places})', rows)


def _columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """The columns of a table; none where there is no such table."""
    return tuple(row[1] for row in connection.execute(f'PRAGMA table_info("{table}")'))


def _parsed(text: Any) -> Gemm | None:
    try:
        gemm = Gemm.parse(text) if isinstance(text, str) else None
    except InvalidGemm:
        return None
    return gemm if gemm is None or str(gemm) == text else None


def _key_of(device: Any) -> Any:
    try:
        value = json.loads(device)
    except (TypeError, ValueError, RecursionError):
        return None
    return value.get("key") if isinstance(value, dict) else None


def _size(blobs: Path, sha256: str) -> int:
    """0 where there is no such file: then the kernel is built again, as it was to be before the damage."""
    try:
        return (blobs / sha256[:2] / sha256[2:4] / sha256).stat().st_size
    except OSError:
        return 0
