"""Rows that a damaged database lost, but that what is left of it tells: of problems, devices and artifacts.

All else refers to these few, and would be lost with them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tirgemm.errors import InvalidGemm
from tirgemm.gemm import Gemm
from tirgemm.tuning_db.upkeep.salvage import columns_of, is_damage

_GEMM = ("id", "text", "m_min", "m_max", "n", "k", "batch", "dtype", "layout")
_DEVICE = ("key", "description", "updated_at")
_ARTIFACT = ("sha256", "nbytes", "kernel_sha256", "created_at")
_TELLS_OF_DEVICES = (("kernels", "stored_at"), ("jobs", "created_at"))
_TELLS_OF_ARTIFACTS = ("artifact_sha256", "kernel_sha256", "stored_at")


def rebuild_rows(damaged: sqlite3.Connection, fresh: sqlite3.Connection, blobs: Path) -> None:
    """Add to a new database, which has every row that could be read: problems, of the index of their texts; devices, as
    the newest kernel or job describes them; artifacts that kernels name, whose files are in ``blobs``."""
    if columns_of(fresh, "gemms") == _GEMM:
        _put(fresh, "gemms", _GEMM, _gemms(damaged))
    if columns_of(fresh, "devices") == _DEVICE:
        for table, at in _TELLS_OF_DEVICES:
            if {"device_key", "device", at} <= set(columns_of(fresh, table)):
                told = fresh.execute(f'SELECT device_key, device, "{at}" FROM "{table}" ORDER BY seq DESC').fetchall()
                # First those that are of the very device.
                told.sort(key=lambda row: _key_of(row[1]) != row[0])
                _put(fresh, "devices", _DEVICE, iter(told))
    if columns_of(fresh, "artifacts") == _ARTIFACT and set(_TELLS_OF_ARTIFACTS) <= set(columns_of(fresh, "kernels")):
        named = fresh.execute(f"SELECT {', '.join(_TELLS_OF_ARTIFACTS)} FROM kernels ORDER BY seq").fetchall()
        _put(fresh, "artifacts", _ARTIFACT, ((sha256, _size(blobs, sha256), *more) for sha256, *more in named))


def _put(fresh: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    names = ", ".join(f'"{column}"' for column in columns)
    places = ", ".join("?" * len(columns))
    fresh.executemany(f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({places})', rows)


def _gemms(damaged: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """The problems that the index of their texts knows: from its begin and from its end, each up to a damaged page."""
    for index in [row[1] for row in damaged.execute('PRAGMA index_list("gemms")') if row[3] == "u"]:
        for order in ("ASC", "DESC"):
            try:
                for number, text in damaged.execute(
                    f'SELECT id, text FROM gemms INDEXED BY "{index}" ORDER BY text {order}'
                ):
                    gemm = _parsed(text)
                    if gemm is not None:
                        yield number, text, *(getattr(gemm, name) for name in _GEMM[2:])
                break
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise


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
