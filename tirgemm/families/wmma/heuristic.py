"""The config without tuning: the best of a table of cuts by the analytic model. Pure; under a millisecond."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.families.tensorcore.estimate import BlockWork, Estimate
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, RUN, k_major, loads, repacked_bytes
from tirgemm.families.wmma.rules import RULES
from tirgemm.families.wmma.space import space, tiling
from tirgemm.families.wmma.tile import FRAGMENT, registers_of
from tirgemm.gemm import Gemm
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
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STAGES = (4, 3, 2)
_MOST_RESIDENT = 4
# Elements after each row of a tile: eight rows of a fragment then lie in all banks.
_PAD = 8
# Places of 16 bytes in a line of all banks.
_PLACES = 8
# What staging sums and padded copies leave of the rate of a kernel that does without.
_SHARE = 0.95


def default(gemm: Gemm, device: Device, regime: str) -> Config:
    """The best-estimated cut that passes every rule. Raises Unsupported where none does."""
    choices = {knob.name: knob.choices for knob in space(gemm).knobs}
    copied, estimate = repacked_bytes(gemm, loads(gemm)[0]), Estimate(gemm, device, regime)
    estimates = []
    for number, (tile_m, tile_n, tile_k, warps_m, warps_n) in enumerate(_CUTS):
        if tile_m not in choices["tile_m"] or tile_n not in choices["tile_n"]:
            continue
        warp_m, warp_n = tile_m // warps_m, tile_n // warps_n
        stage = (tile_m + tile_n) * (tile_k + _PAD) * ELEMENT_BYTES
        stages = next((s for s in _STAGES if s * stage <= device.limits.shared_per_block), 0)
        need = registers_of(warp_m, warp_n, gemm.acc, 2)
        resident = occupancy(device.limits, warps_m * warps_n * WARP, need, stages * stage)
        if not resident:
            continue
        blocks = -(-gemm.m_max // tile_m) * -(-gemm.n // tile_n) * gemm.batch
        efficiency = _efficiency(gemm, (tile_m, tile_n, tile_k), (warps_m, warps_n), 2, _PAD)
        for split in _SPLITS:
            if split == 1 or (split in choices["split"] and blocks * split <= 2 * resident * device.units):
                cut = BlockWork(tile_m, tile_n, tile_k, warps_m, warps_n, stages, split, resident, efficiency, copied)
                room = min(resident, -(-blocks * split // device.units), _MOST_RESIDENT)
                estimates.append((estimate.us(cut), number, split, room))
    for _, number, split, room in sorted(estimates):
        for stages in _STAGES:
            config = _config(gemm, number, split, stages, room, choices)
            if config is not None and all(rule.check(gemm, config, device) is None for rule in RULES):
                return config
    raise Unsupported(f"wmma has no default for {gemm} on {device.name}: every cut of its table breaks a rule")


def predict_us(gemm: Gemm, config: Config, device: Device, regime: str) -> float:
    """The time that the analytic model gives a config."""
    cut = tiling(gemm, config)
    need = min(registers_of(cut.warp_m, cut.warp_n, gemm.acc, cut.sets), device.limits.registers_per_thread)
    resident = occupancy(device.limits, cut.threads, need, cut.shared_bytes)
    tile, warps = (cut.tile_m, cut.tile_n, cut.tile_k), (cut.warps_m, cut.warps_n)
    efficiency = _efficiency(gemm, tile, warps, cut.sets, config["pad"])
    work = BlockWork.of(cut, resident, efficiency, repacked_bytes(gemm, config["load"]))
    return Estimate(gemm, device, regime).us(work)


def _efficiency(gemm: Gemm, tile: tuple[int, int, int], warps: tuple[int, int], sets: int, pad: int) -> float:
    """The share of mma.sync's rate: factors, whose loads come between, are read again the less the larger a warp's
    tile.

    A load takes as many wavefronts as rows start in one place of the banks.
    """
    fragments_m, fragments_n = tile[0] / warps[0] / FRAGMENT, tile[1] / warps[1] / FRAGMENT
    rows = (tile[2] if k_major(gemm, "a") else tile[0]), (tile[2] if k_major(gemm, "b") else tile[1])
    loads_a, loads_b = (math.gcd((row + pad) // RUN, _PLACES) for row in rows)
    products, factors = 2 * fragments_m * fragments_n, fragments_m * loads_a + fragments_n * loads_b
    return _SHARE * products / (products + factors * (1.0 if sets == 1 else 0.5))


def _config(
    gemm: Gemm, number: int, split: int, stages: int, resident: int, choices: Mapping[str, tuple[object, ...]]
) -> Config | None:
    tile_m, tile_n, tile_k, warps_m, warps_n = _CUTS[number]
    tile_k = next((k for k in (tile_k, 32, 16) if k in choices["tile_k"]), FRAGMENT)
    columns = -(-gemm.n // tile_n)
    if stages not in choices["stages"]:
        return None
    return Config(
        "wmma",
        (
            ("tile_m", tile_m),
            ("tile_n", tile_n),
            ("tile_k", tile_k),
            ("warps_m", warps_m),
            ("warps_n", warps_n),
            ("stages", stages),
            ("registers", 2 if tile_k > FRAGMENT else 1),
            ("resident", resident),
            ("pad", _PAD),
            ("load", loads(gemm)[0]),
            ("split", split),
            ("raster", next(r for r in (4, 8, 2, 1) if columns % r == 0 and r in choices["raster"])),
        ),
    )
