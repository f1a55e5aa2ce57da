"""The default config and the rough time of a config: analytic, pure, far below a millisecond."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.base import accepted
from tirgemm.families.common.fit_file import fitted_constants
from tirgemm.families.x86.layout import CHUNK, PanelTiling
from tirgemm.families.x86.rules import BLOCK_RULES, RULES, TILE_RULES
from tirgemm.families.x86.space import TILE_M, has_avx512, usual_block_k
from tirgemm.gemm import DTYPE_BYTES, Gemm, Regime

# Where the device does not say what it has.
_CLOCK_GHZ = 3.0


@dataclass(frozen=True, slots=True)
class CoreConstants:
    """What one core takes: ``estimate.json``."""

    # What it takes to start the threads, of the product and of each copy of an operand.
    launch_us: float
    # What a core copies from memory, to panels or out of a cold cache.
    copy_gbps: float
    # Vector instructions that a core starts, and how long a sum waits for the one before it.
    fmas_per_clock: float
    loads_per_clock: float
    fma_latency_clocks: float


CONSTANTS = fitted_constants(__package__, CoreConstants)


def default(gemm: Gemm, device: Device, space: Space) -> Config:
    """The first config, in order of preference, that the rules accept."""
    choices = {knob.name: knob.choices for knob in space.knobs}
    lanes = 16 if has_avx512(device) and gemm.n > 8 else 8
    blocks = _blocks(gemm, device)
    for tile_m, vectors in _tiles(gemm, lanes, choices):
        if tile_m not in choices["tile_m"] or vectors not in choices["vectors"]:
            continue
        # One panel of rows passes over B once: copying B first would only add to its traffic.
        in_place = (
            gemm.m_max <= tile_m and False in choices["pack_b"] and (gemm.trans_b or gemm.n % (vectors * lanes) == 0)
        )
        tile = Config(
            space.family,
            (
                ("tile_m", tile_m),
                ("vectors", vectors),
                ("lanes", lanes),
                ("pack_a", True),
                ("pack_b", not in_place),
                ("unroll", 2),
                ("block_m", 0),
                ("block_n", 0),
                # Rows of B that are read in place are read to their ends.
                ("block_k", 0 if in_place and gemm.trans_b and not gemm.invariant else usual_block_k(gemm)),
                ("order", "rows"),
                ("threads", 1 if gemm.flops < 2**20 and 1 in choices["threads"] else 0),
            ),
        )
        if not accepted(TILE_RULES, gemm, tile, device):
            continue
        for block_m, block_n in blocks:
            candidate = tile.with_(
                block_m=min(block_m, choices["block_m"][-1]), block_n=min(block_n, choices["block_n"][-1])
            )
            if accepted(BLOCK_RULES, gemm, candidate, device):
                return candidate
    return next(config for config in space if accepted(RULES, gemm, config, device))


def predict_us(gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
    """Multiply-adds of the padded problem, the copies of packing, and what each launch costs."""
    c, tiling = CONSTANTS[regime], PanelTiling(gemm, config)
    threads = min(config["threads"] or device.units, device.units)
    panels_m = evaluate(tiling.panels_m, gemm.m_max)
    tasks = evaluate(tiling.tasks, gemm.m_max)
    steps = gemm.batch * panels_m * tiling.panels_n * tiling.chunks * CHUNK
    sums = tiling.tile_m * int(config["vectors"])
    # A step of k waits for the FMAs, the loads, or the latency of its own sums.
    loads = tiling.tile_m + int(config["vectors"])
    cycles = max(sums / c.fmas_per_clock, loads / c.loads_per_clock, c.fma_latency_clocks)
    # A square of vectors is turned by so many shuffles a vector, one a clock.
    cycles += tiling.turns_b * int(config["vectors"]) * math.log2(tiling.lanes)
    ghz = device.clock_mhz / 1000 if device.clock_mhz else _CLOCK_GHZ
    multiply = steps * cycles / (ghz * 1e3) / threads * (-(-tasks // threads) * threads / tasks)
    copied = 0
    for packed, rows in ((tiling.packs_a, gemm.m_max), (tiling.packs_b, gemm.n)):
        copied += packed * gemm.batch * rows * gemm.k * (DTYPE_BYTES[gemm.dtype] + 4)
    copies = (copied + 4 * gemm.batch * gemm.m_max * gemm.n) / (c.copy_gbps * 1e3) / threads
    cold = gemm.nbytes / (c.copy_gbps * 1e3) if regime == "isolated" else 0.0
    return multiply + copies + cold + c.launch_us * (1 + tiling.packs_a + tiling.packs_b)


def _tiles(gemm: Gemm, lanes: int, choices: Mapping[str, Sequence[Value]]) -> list[tuple[int, int]]:
    """Register tiles in order of preference: for few rows that pass over a transposed B in place, then the best for
    large problems, then for few rows, then for few columns."""
    large = ((14, 2), (12, 2), (9, 3), (8, 3)) if 16 in choices["lanes"] else ((6, 2), (4, 3))
    columns = -(-gemm.n // lanes)
    in_place = [(m, 1) for m in TILE_M if m >= gemm.m_max] if gemm.trans_b and False in choices["pack_b"] else []
    tiles = [*in_place[:1]]
    tiles += large if gemm.m_max >= large[-1][0] and columns >= 2 else []
    if columns == 1:
        tiles += [(28, 1), (24, 1), (14, 1), (12, 1), (9, 1), (8, 1)]
    tiles += [(m, v) for v in (4, 3, 2, 1) for m in (8, 6, 4, 2, 1) if v <= columns and (m < 2 * gemm.m_max or m == 1)]
    return tiles


def _blocks(gemm: Gemm, device: Device) -> list[tuple[int, int]]:
    """Blocks of a task, the largest that give every thread a few tasks first."""
    sizes = [(512, 512), (512, 256), (256, 256), (256, 128), (128, 128), (128, 64), (64, 64)]

    def tasks(block: tuple[int, int]) -> int:
        return gemm.batch * -(-gemm.m_max // block[0]) * -(-gemm.n // block[1])

    enough = [block for block in sizes if tasks(block) >= 4 * device.units]
    return [*enough, *(block for block in reversed(sizes) if block not in enough), (1024, 1024)]
