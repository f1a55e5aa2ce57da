"""The static rules of ``mma``, cheapest first."""

from __future__ import annotations

from functools import partial

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import Rule
from tirgemm.families.mma.space import TILES_M, TILES_N, tiling
from tirgemm.families.mma.tile import MMA_M, PAIR_N, VECTOR, registers_of
from tirgemm.families.summation import Summation, invariant_rule
from tirgemm.families.tensorcore import rules
from tirgemm.families.tensorcore.names import STAGED
from tirgemm.families.tensorcore.tiling import MMA_K
from tirgemm.gemm import Gemm
from tirgemm.hardware import WARP


def _copy(gemm: Gemm, config: Config, device: Device) -> str | None:
    return rules.copy(tiling(gemm, config), config["copy"])


def _registers(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    return rules.registers(cut, registers_of(cut, config["registers"]), device)


def _resident(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    return rules.resident(cut, registers_of(cut, config["registers"]), device)


def _epilogue(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut, most = tiling(gemm, config), WARP * VECTOR
    if cut.epilogue != STAGED or cut.warp_n <= most:
        return None
    return (
        f"epilogue={STAGED} gives each lane {VECTOR} outputs of a row; a warp's {cut.warp_n} columns are more than "
        f"{most}"
    )


def _summation(gemm: Gemm, config: Config) -> Summation:
    cut = tiling(gemm, config)
    # Zeros behind k change at most the sign of a zero (docs/invariance.md).
    return Summation(gemm.k if cut.split == 1 else cut.steps * cut.tile_k, gemm.k)


_of_tiling, _of_device = partial(rules.of_tiling, tiling), partial(rules.of_device, tiling)

RULES: tuple[Rule, ...] = (
    invariant_rule(_summation, lambda gemm: Summation(gemm.k, gemm.k)),
    Rule("warps", _of_tiling(lambda cut: rules.warps(cut, MMA_M, PAIR_N))),
    Rule("epilogue", _epilogue),
    Rule("fragments", rules.of_fragments(MMA_K)),
    Rule("tile", _of_tiling(lambda cut: rules.tile(cut, TILES_M, TILES_N))),
    Rule("load", rules.of_load(tiling)),
    Rule("copy", _copy),
    Rule("raster", _of_tiling(rules.raster)),
    Rule("stages", _of_tiling(rules.stages)),
    Rule("split", _of_tiling(rules.split)),
    Rule("shared", _of_device(rules.shared)),
    Rule("registers", _registers),
    Rule("resident", _resident),
    Rule("grid", _of_tiling(rules.grid)),
    Rule("waves", _of_device(rules.waves)),
)
