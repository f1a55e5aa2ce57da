"""Configs without tuning: the best of a table of cuts by the analytic model and, where one was trained, a ranking
model. Pure; some milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.families.common.alignment import store_width
from tirgemm.families.mma.space import space, tiling
from tirgemm.families.mma.tile import VECTOR, registers_of
from tirgemm.families.tensorcore.default_choice import Choices, ConfigsOfCuts, ranked, variants_of
from tirgemm.families.tensorcore.estimate import CONSTANTS, BlockWork, MmaSyncConstants, estimate
from tirgemm.families.tensorcore.names import DIRECT, LINE, PERMUTED, STAGED
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, loads, repacked_bytes
from tirgemm.gemm import DTYPE_BYTES, Gemm, Regime
from tirgemm.hardware import occupancy

# tile_m, tile_n, tile_k, warps_m, warps_n, blocks that an SM holds; largest first: where the model calls two equal,
# data is reused more.
_CUTS = (
    (128, 256, 64, 2, 4, 1),
    (256, 128, 64, 4, 2, 1),
    (128, 256, 32, 2, 4, 1),
    (256, 128, 32, 4, 2, 1),
    (128, 128, 64, 2, 2, 2),
    (128, 128, 32, 2, 2, 2),
    (128, 64, 32, 2, 2, 3),
    (64, 128, 32, 2, 2, 3),
    (64, 64, 64, 2, 2, 3),
    (128, 32, 64, 4, 1, 3),
    (32, 128, 64, 1, 4, 3),
    (64, 32, 64, 2, 2, 4),
    (32, 64, 64, 2, 2, 4),
    (64, 32, 64, 2, 1, 6),
    (32, 64, 64, 1, 2, 6),
    (128, 16, 64, 4, 1, 4),
    (16, 128, 64, 1, 4, 4),
    (32, 32, 64, 2, 2, 6),
    (32, 32, 64, 1, 1, 8),
    (16, 64, 64, 1, 4, 4),
    (64, 16, 64, 4, 1, 4),
    (16, 64, 64, 1, 2, 6),
    (64, 16, 64, 2, 1, 6),
    (16, 32, 64, 1, 2, 8),
    (32, 16, 64, 2, 1, 8),
    (16, 32, 64, 1, 1, 10),
    (32, 16, 64, 1, 1, 10),
    (16, 16, 64, 1, 1, 12),
)
# With fewer stages copies are waited for; a larger tile is not worth that.
_LEAST_STAGES, _MOST_STAGES = 3, 4


def configs_of_cuts(gemm: Gemm, device: Device, regime: Regime) -> ConfigsOfCuts:
    """The usual configs of the table's cuts and of their splits of k, and what else a model chooses among."""
    choices = {knob.name: knob.choices for knob in space(gemm).knobs}
    cuts = ranked(gemm, device, regime, _cuts(device, regime, repacked_bytes(gemm, loads(gemm)[0])), choices)
    usual = (_config(gemm, device, cut, choices) for cut in cuts)

    def variants(config: Config) -> Iterator[Config]:
        stages = config["stages"]
        alternatives: dict[str, tuple[Value, ...]] = {
            "stages": (stages - 1, stages + 1),
            "tile_k": (64, 32),
            "epilogue": (STAGED, DIRECT),
        }
        return variants_of(config, alternatives, choices)

    return ConfigsOfCuts(usual, variants)


def _cuts(device: Device, regime: Regime, copied: int) -> Iterator[BlockWork]:
    """Every cut of which shared memory holds stages enough, unsplit."""
    limits = device.limits
    for tile_m, tile_n, tile_k, warps_m, warps_n, most in _CUTS:
        stage = (tile_m + tile_n) * tile_k * ELEMENT_BYTES
        stages = min(_MOST_STAGES, limits.shared_per_block // stage)
        resident = min(most, limits.shared_per_sm // (stages * stage + limits.shared_reserved_per_block))
        if stages >= _LEAST_STAGES and resident:
            efficiency = _efficiency(tile_m // warps_m, tile_n // warps_n, 2, CONSTANTS[regime])
            yield BlockWork(tile_m, tile_n, tile_k, warps_m, warps_n, stages, 1, resident, efficiency, copied)


def predict_us(gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
    """The time that the analytic model gives a config."""
    cut = tiling(gemm, config)
    sets = config["registers"]
    resident = occupancy(device.limits, cut.threads, min(255, registers_of(cut, sets)), cut.shared_bytes)
    efficiency = _efficiency(cut.warp_m, cut.warp_n, sets, CONSTANTS[regime])
    work = BlockWork.of(cut, resident, efficiency, repacked_bytes(gemm, config["load"]))
    return estimate(gemm, device, regime).us(work)


def _efficiency(warp_m: int, warp_n: int, sets: int, constants: MmaSyncConstants) -> float:
    """The share of mma.sync's rate: fragments, whose loads come between, are read again the less the larger a warp's
    tile."""
    products, fragments = warp_m * warp_n / 128, (warp_m + warp_n) / 16
    return products / (products + fragments * (1.0 if sets == 1 else constants.two_set_load_share))


def _config(gemm: Gemm, device: Device, cut: BlockWork, choices: Choices) -> Config:
    tile_m, tile_n, split = cut.tile_m, cut.tile_n, cut.split
    tile_k = next((k for k in (cut.tile_k, 32, 16) if k in choices["tile_k"]), 16)
    columns = -(-gemm.n // tile_n)
    # A wave of blocks reads least of A and B where it has as many columns of outputs as rows.
    wave = math.isqrt(device.units * cut.resident * tile_m * tile_n)
    rasters = [r for r in (1, 2, 3, 4, 8, 16) if columns % r == 0 and r in choices["raster"]]
    # Half sectors are what leaves the registers otherwise.
    whole = split > 1 or (DTYPE_BYTES[gemm.out] == 2 and store_width(gemm) == VECTOR)
    steps = -(-gemm.k // (tile_k * split))
    stages = max(2, min(cut.stages, steps + 1))
    return Config(
        "mma",
        (
            ("tile_m", tile_m),
            ("tile_n", tile_n),
            ("tile_k", tile_k),
            ("warps_m", cut.warps_m),
            ("warps_n", cut.warps_n),
            ("stages", stages),
            ("registers", 2 if tile_k > 16 else 1),
            ("resident", 1),
            ("shared", PERMUTED),
            ("copy", LINE),
            ("load", loads(gemm)[0]),
            ("epilogue", STAGED if whole else DIRECT),
            ("split", split),
            ("raster", min(rasters, key=lambda raster: abs(raster * tile_n - wave))),
        ),
    )
