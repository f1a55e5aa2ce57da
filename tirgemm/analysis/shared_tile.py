"""An operand's tile in shared memory as its family lays it out, and who copies it there: what the pictures are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tirgemm.analysis.access_patterns import Pattern
from tirgemm.analysis.counting import Kind
from tirgemm.analysis.kernel import AccessReport
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.layouts import Layout, TiledCopy

_TMA_SPAN = 128


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A's tile: ``layout`` as the kernel has it, ``copy`` which thread copies what of the operand's own tile (None where
    TMA does), and how many bytes after one another such tiles begin (``period``)."""

    layout: Layout
    copy: TiledCopy | None
    period: int

    def patterns(self, accesses: Sequence[AccessReport]) -> dict[str, Pattern]:
        """One request of each kind of ``accesses``, in rows and columns of the tile, by name; those alone that fit it.

        The tile is taken to begin at the least address that an access of it has.
        """
        shown = [
            a for a in accesses if a.example is not None and a.space == "shared" and a.op not in ("bulk", "matrix")
        ]
        starts = [min(b for b in a.example.addresses if b is not None) for a in shown if a.example is not None]
        found: dict[str, Pattern] = {}
        for access in shown:
            made = self._pattern(access, min(starts))
            if made is not None:
                found.setdefault(made.name, made)
        return found

    def _pattern(self, access: AccessReport, base: int) -> Pattern | None:
        assert access.example is not None
        try:
            kind = Kind("shared", access.op, access.width, access.matrices, access.transposed).access
        except InvalidRequest:
            return None
        active = np.array([[address is not None for address in access.example.addresses]])
        offsets = np.array([[0 if address is None else address - base for address in access.example.addresses]])
        offsets = np.where(active, offsets, 0) % self.period
        size = self.layout.element_bytes
        rows, columns = self.layout.coordinates(offsets // size)
        rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
        last = columns + max(1, access.width // size) - 1
        if (
            (offsets % size).any()
            or (rows[active] >= self.layout.rows).any()
            or (last[active] >= self.layout.columns).any()
        ):
            return None
        return Pattern(str(kind), kind, rows, columns, active)


def shared_tile(gemm: Gemm, config: Config, device: Device) -> SharedTile | None:
    """The tile of A that ``config`` makes; None for a family of which it is not known or a config without one."""
    try:
        if config.family == "simt":
            return _simt(gemm, config)
        if config.family in ("wmma", "mma"):
            return _tensorcore(gemm, config)
        if config.family == "wgmma":
            return _wgmma(gemm, config, device)
    except InvalidConfig:
        return None
    return None


def _simt(gemm: Gemm, config: Config) -> SharedTile | None:
    from tirgemm.families.simt.tiling import tiling, transposes

    cut = tiling(gemm, config)
    if not cut.shares:
        return None
    along_k = not gemm.trans_a
    turned = cut.reads == "fragments"
    rows, columns = (cut.block_k, cut.block_m) if turned or not along_k else (cut.block_m, cut.block_k)
    layout = Layout.padded(rows, columns, cut.element_bytes, cut.pad_a)
    line = cut.block_k if transposes(gemm, "a") else cut.block_m
    try:
        copy = TiledCopy.row_major(cut.threads, line, cut.width_a)
    except InvalidConfig:
        return SharedTile(layout, None, layout.nbytes)
    return SharedTile(layout, copy, layout.nbytes)


def _tensorcore(gemm: Gemm, config: Config) -> SharedTile:
    if config.family == "mma":
        from tirgemm.families.mma.space import tiling
    else:
        from tirgemm.families.wmma.space import tiling
    cut = tiling(gemm, config)
    return SharedTile(cut.a.layout.recast(2), cut.a.copy, cut.a.nbytes + cut.b.nbytes)


def _wgmma(gemm: Gemm, config: Config, device: Device) -> SharedTile:
    from tirgemm.families.wgmma.copies import COPYING_THREADS, copies_of
    from tirgemm.families.wgmma.plan import plan

    cut = plan(gemm, config, device.units)
    tile = cut.right if cut.swapped else cut.left
    span = min(_TMA_SPAN, tile.width * 2)
    copy = None
    if cut.copied["a"]:
        copy = TiledCopy.row_major(COPYING_THREADS, tile.width, copies_of(cut, "a").elements)
    return SharedTile(Layout.tma(tile.rows, span // 2, 2, span), copy, cut.stage_bytes)
