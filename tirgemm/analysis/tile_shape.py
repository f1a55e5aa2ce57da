"""Output tile of a config, from its family or from its knobs."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import families
from tirgemm.families.base import OutputTile, WithOutputTile
from tirgemm.gemm import Gemm

_ROWS, _COLUMNS, _STEP = ("block_m", "tile_m"), ("block_n", "tile_n"), ("block_k", "tile_k")


def output_tile(gemm: Gemm, config: Config, device: Device, m: int) -> OutputTile | None:
    """The tile that a block of ``config`` computes; None for a family whose knobs name no tile."""
    family: object = families().get(config.family)
    if isinstance(family, WithOutputTile):
        return family.output_tile(gemm, config, device, m)
    knobs = dict(config.knobs)

    def size(names: tuple[str, ...]) -> int:
        return next((int(knobs[name]) for name in names if name in knobs), 0)

    rows, columns = size(_ROWS), size(_COLUMNS)
    return OutputTile(rows, columns, size(_STEP) or gemm.k) if rows and columns else None
