"""Configs without tuning: the best of a table of cuts by the analytic model and, where one was trained, a ranking
model. Pure; some milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.families.tensorcore.default_choice import Choices, ConfigsOfCuts, blocks, ranked, variants_of
from tirgemm.families.tensorcore.estimate import CONSTANTS, BlockWork, MmaSyncConstants, estimate
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, RUN, k_major, loads, repacked_bytes
from tirgemm.families.wmma.space import space, tiling
from tirgemm.families.wmma.tile import FRAGMENT, registers_of
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import WARP, occupancy

# tile_m, tile_n, tile_k, warps_m, warps_n; largest first: where the model calls two equal, data is reused more.
_CUTS = (
    (128, 256, 64, 2, 4),
    (256, 128, 64, 2, 4),
    (128, 256, 32, 2, 4),
    (256, 128, 32, 4, 2),
    (128, 128, 32, 2, 2),
    (128, 64, 32, 2, 2),
    (64, 128, 32, 2, 2),
    (64, 64, 64, 2, 2),
    (64, 64, 32, 2, 2),
    (64, 32, 64, 2, 2),
    (32, 64, 64, 2, 2),
    (32, 32, 64, 2, 2),
    (16, 64, 64, 1, 4),
    (64, 16, 64, 4, 1),
    (16, 32, 64, 1, 2),
    (32, 16, 64, 2, 1),
    (16, 16, 64, 1, 1),
)
_STAGES = (4, 3, 2)
_MOST_RESIDENT = 4
# Elements after each row of a tile: eight rows of a fragment then lie in all banks.
_PAD = 8
# Places of 16 bytes in a line of all banks.
_PLACES = 8


def configs_of_cuts(gemm: Gemm, device: Device, regime: Regime) -> ConfigsOfCuts:
    """The usual configs of the table's cuts and of their splits of k, and what else a model chooses among."""
    choices = {knob.name: knob.choices for knob in space(gemm).knobs}
    cuts = ranked(gemm, device, regime, _cuts(gemm, device, regime), choices)
    usual = (_config(gemm, device, cut, choices) for cut in cuts)

    def variants(config: Config) -> Iterator[Config]:
        alternatives: dict[str, tuple[Value, ...]] = {
            "stages": (config["stages"] - 1,),
            "tile_k": (64, 32),
            "registers": (2, 1),
            "resident": (1,),
        }
        return variants_of(config, alternatives, choices)

    return ConfigsOfCuts(usual, variants)


def _cuts(gemm: Gemm, device: Device, regime: Regime) -> Iterator[BlockWork]:
    """Every cut that an SM holds, unsplit, with as many stages as it holds."""
    copied = repacked_bytes(gemm, loads(gemm)[0])
    for tile_m, tile_n, tile_k, warps_m, warps_n in _CUTS:
        stage = (tile_m + tile_n) * (tile_k + _PAD) * ELEMENT_BYTES
        stages = next((s for s in _STAGES if s * stage <= device.limits.shared_per_block), None)
        if stages is None:
            continue
        need = registers_of(tile_m // warps_m, tile_n // warps_n, gemm.acc, 2)
        resident = occupancy(device.limits, warps_m * warps_n * WARP, need, stages * stage)
        if resident:
            tile, warps = (tile_m, tile_n, tile_k), (warps_m, warps_n)
            efficiency = _efficiency(gemm, tile, warps, 2, _PAD, CONSTANTS[regime])
            yield BlockWork(tile_m, tile_n, tile_k, warps_m, warps_n, stages, 1, resident, efficiency, copied)


def predict_us(gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
    """The time that the analytic model gives a config."""
    cut = tiling(gemm, config)
    need = min(registers_of(cut.warp_m, cut.warp_n, gemm.acc, cut.sets), device.limits.registers_per_thread)
    resident = occupancy(device.limits, cut.threads, need, cut.shared_bytes)
    tile, warps = (cut.tile_m, cut.tile_n, cut.tile_k), (cut.warps_m, cut.warps_n)
    efficiency = _efficiency(gemm, tile, warps, cut.sets, config["pad"], CONSTANTS[regime])
    work = BlockWork.of(cut, resident, efficiency, repacked_bytes(gemm, config["load"]))
    return estimate(gemm, device, regime).us(work)


def _efficiency(
    gemm: Gemm, tile: tuple[int, int, int], warps: tuple[int, int], sets: int, pad: int, constants: MmaSyncConstants
) -> float:
    """The share of mma.sync's rate: factors, whose loads come between, are read again the less the larger a warp's
    tile.

    A load takes as many wavefronts as rows start in one place of the banks.
    """
    fragments_m, fragments_n = tile[0] / warps[0] / FRAGMENT, tile[1] / warps[1] / FRAGMENT
    rows = (tile[2] if k_major(gemm, "a") else tile[0]), (tile[2] if k_major(gemm, "b") else tile[1])
    loads_a, loads_b = (math.gcd((row + pad) // RUN, _PLACES) for row in rows)
    products, factors = 2 * fragments_m * fragments_n, fragments_m * loads_a + fragments_n * loads_b
    exposed = factors * (1.0 if sets == 1 else constants.two_set_load_share)
    return constants.wmma_rate_share * products / (products + exposed)


def _config(gemm: Gemm, device: Device, cut: BlockWork, choices: Choices) -> Config:
    tile_k = next((k for k in (cut.tile_k, 32, 16) if k in choices["tile_k"]), FRAGMENT)
    columns = -(-gemm.n // cut.tile_n)
    return Config(
        "wmma",
        (
            ("tile_m", cut.tile_m),
            ("tile_n", cut.tile_n),
            ("tile_k", tile_k),
            ("warps_m", cut.warps_m),
            ("warps_n", cut.warps_n),
            ("stages", next(s for s in _STAGES if s <= cut.stages and s in choices["stages"])),
            ("registers", 2 if tile_k > FRAGMENT else 1),
            ("resident", min(cut.resident, -(-blocks(gemm, cut) * cut.split // device.units), _MOST_RESIDENT)),
            ("pad", _PAD),
            ("load", loads(gemm)[0]),
            ("split", cut.split),
            ("raster", next(r for r in (4, 8, 2, 1) if columns % r == 0 and r in choices["raster"])),
        ),
    )
