"""Output tile of a config, from its family or from its knobs."""

from __future__ import annotations

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import families
from tirgemm.families.base import OutputTile, WithOutputTile
from tirgemm.families.common.knob_parts import knob_parts
from tirgemm.gemm import Gemm


def output_tile(gemm: Gemm, config: Config, device: Device, m: int) -> OutputTile | None:
    """The tile that a block of ``config`` computes; None for a family whose knobs name no tile."""
    family: object = families().get(config.family)
    if isinstance(family, WithOutputTile):
        return family.output_tile(gemm, config, device, m)
    parts = knob_parts(dict(config.knobs))
    rows, columns, step = (int(parts.get(f"tile_{axis}", 0)) for axis in "mnk")
    return OutputTile(rows, columns, step or gemm.k) if rows and columns else None
