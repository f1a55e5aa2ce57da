"""The static rules of ``mma``, cheapest first."""

from __future__ import annotations

from collections.abc import Callable

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import Rule
from tirgemm.families.mma.space import TILES_M, TILES_N, tiling
from tirgemm.families.mma.tile import MMA_M, PAIR_N, VECTOR, registers_of
from tirgemm.families.tensorcore import rules
from tirgemm.families.tensorcore.names import STAGED
from tirgemm.families.tensorcore.tiling import MMA_K, Tiling
from tirgemm.gemm import Gemm
from tirgemm.hardware import WARP

Check = Callable[[Gemm, Config, Device], str | None]


def _of_tiling(check: Callable[[Tiling], str | None]) -> Check:
    return lambda gemm, config, _: check(tiling(gemm, config))


def _fragments(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    if config["registers"] == 1 or config["tile_k"] > MMA_K:
        return None
    return f"registers=2 loads the second {MMA_K} of k while the first is multiplied; tile_k={config['tile_k']} has one"


def _load(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    return rules.load(tiling(gemm, config), config["load"])


def _copy(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    return rules.copy(tiling(gemm, config), config["copy"])


def _shared(gemm: Gemm, config: Config, device: Device) -> str | None:
    return rules.shared(tiling(gemm, config), device)


def _registers(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    return rules.registers(cut, registers_of(cut, config["registers"]), device)


def _resident(gemm: Gemm, config: Config, device: Device) -> str | None:
    cut = tiling(gemm, config)
    return rules.resident(cut, registers_of(cut, config["registers"]), device)


def _epilogue(gemm: Gemm, config: Config, device: Device) -> str | None:  # noqa: ARG001
    cut, most = tiling(gemm, config), WARP * VECTOR
    if cut.epilogue != STAGED or cut.warp_n <= most:
        return None
    return f"epilogue={STAGED} gives each lane {VECTOR} outputs of a row; a warp's {cut.warp_n} columns are more than {most}"


def _waves(gemm: Gemm, config: Config, device: Device) -> str | None:
    return rules.waves(tiling(gemm, config), device)


RULES: tuple[Rule, ...] = (
    Rule("warps", _of_tiling(lambda cut: rules.warps(cut, MMA_M, PAIR_N))),
    Rule("epilogue", _epilogue),
    Rule("fragments", _fragments),
    Rule("tile", _of_tiling(lambda cut: rules.tile(cut, TILES_M, TILES_N))),
    Rule("load", _load),
    Rule("copy", _copy),
    Rule("raster", _of_tiling(rules.raster)),
    Rule("stages", _of_tiling(rules.stages)),
    Rule("split", _of_tiling(rules.split)),
    Rule("shared", _shared),
    Rule("registers", _registers),
    Rule("resident", _resident),
    Rule("grid", _of_tiling(rules.grid)),
    Rule("waves", _waves),
)
