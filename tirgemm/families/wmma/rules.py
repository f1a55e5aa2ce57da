"""The static rules of ``wmma``, cheapest first."""

from __future__ import annotations

from functools import partial

from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import Rule
from tirgemm.families.tensorcore import rules
from tirgemm.families.tensorcore.names import LINE
from tirgemm.families.wmma.space import TILES_M, TILES_N, tiling
from tirgemm.families.wmma.tile import FRAGMENT, WmmaTiling, registers_of


def _need(cut: WmmaTiling) -> int:
    return registers_of(cut.warp_m, cut.warp_n, cut.gemm.acc, cut.sets)


def _filled(cut: WmmaTiling, device: Device) -> str | None:
    if cut.split == 1:
        return None
    tiles = evaluate(cut.blocks, cut.gemm.m_max) // cut.split
    if tiles < 2 * device.units:
        return None
    return f"{tiles} tiles are two or more for each of {device.units} SMs: split={cut.split} would only add its parts"


_of_tiling, _of_device = partial(rules.of_tiling, tiling), partial(rules.of_device, tiling)

RULES: tuple[Rule, ...] = (
    Rule("warps", _of_tiling(lambda cut: rules.warps(cut, FRAGMENT, FRAGMENT))),
    Rule("fragments", rules.of_fragments(FRAGMENT)),
    Rule("tile", _of_tiling(lambda cut: rules.tile(cut, TILES_M, TILES_N))),
    Rule("load", rules.of_load(tiling)),
    Rule("copy", _of_tiling(lambda cut: rules.copy(cut, LINE))),
    Rule("raster", _of_tiling(rules.raster)),
    Rule("stages", _of_tiling(rules.stages)),
    Rule("split", _of_tiling(rules.split)),
    Rule("filled", _of_device(_filled)),
    Rule("shared", _of_device(rules.shared)),
    Rule("registers", _of_device(lambda cut, device: rules.registers(cut, _need(cut), device))),
    Rule("resident", _of_device(lambda cut, device: rules.resident(cut, _need(cut), device))),
    Rule("grid", _of_tiling(rules.grid)),
    Rule("waves", _of_device(rules.waves)),
)
