"""Shared-memory tile of A and the requests that fall into it, for drawings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tirgemm.analysis.banks.access_patterns import Pattern
from tirgemm.analysis.memory_traffic import AccessReport
from tirgemm.analysis.simulate.counting import RequestKind
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest
from tirgemm.families import families
from tirgemm.families.base import SharedTile, WithSharedTile
from tirgemm.gemm import Gemm


def shared_tile(gemm: Gemm, config: Config, device: Device) -> SharedTile | None:
    """The tile of A that ``config`` makes; None for a family that does not say or a config without one."""
    family: object = families().get(config.family)
    if not isinstance(family, WithSharedTile):
        return None
    try:
        return family.shared_tile(gemm, config, device)
    except InvalidConfig:
        return None


def requests(tile: SharedTile, accesses: Sequence[AccessReport]) -> dict[str, Pattern]:
    """One request of each kind of ``accesses``, in rows and columns of ``tile``, by name; those alone that fit it.

    The tile is taken to begin at the least address that an access of it has.
    """
    shown = [a for a in accesses if a.example is not None and a.space == "shared" and a.op not in ("bulk", "matrix")]
    starts = [min(b for b in a.example.addresses if b is not None) for a in shown if a.example is not None]
    by_name: dict[str, Pattern] = {}
    for access in shown:
        made = _pattern(tile, access, min(starts))
        if made is not None:
            by_name.setdefault(made.name, made)
    return by_name


def _pattern(tile: SharedTile, access: AccessReport, base: int) -> Pattern | None:
    assert access.example is not None
    try:
        kind = RequestKind("shared", access.op, access.width, access.matrices, access.transposed).access
    except InvalidRequest:
        return None
    active = np.array([[address is not None for address in access.example.addresses]])
    offsets = np.array([[0 if address is None else address - base for address in access.example.addresses]])
    offsets = np.where(active, offsets, 0) % tile.period
    size = tile.layout.element_bytes
    rows, columns = tile.layout.coordinates(offsets // size)
    rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
    last = columns + max(1, access.width // size) - 1
    if (
        (offsets % size).any()
        or (rows[active] >= tile.layout.rows).any()
        or (last[active] >= tile.layout.columns).any()
    ):
        return None
    return Pattern(str(kind), kind, rows, columns, active)
