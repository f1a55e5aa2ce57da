"""The config without tuning, and the time that an analytic model gives a config. Pure; well under a millisecond."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tirgemm.config import Config
from tirgemm.device import Device, Limits
from tirgemm.errors import Unsupported
from tirgemm.families.tensorcore.names import REPACK
from tirgemm.families.tensorcore.tiling import ELEMENT_BYTES, OPERANDS, RUN, copy_width
from tirgemm.families.wmma.rules import RULES
from tirgemm.families.wmma.space import loads, space
from tirgemm.families.wmma.tiling import FRAGMENT, SUM_REGISTERS, registers_of
from tirgemm.gemm import Gemm
from tirgemm.hardware import WARP, occupancy

# tile_m, tile_n, tile_k, warps_m, warps_n, stages. Largest first: where the model calls two equal, data is reused more.
_SHAPES = (
    (128, 256, 32, 2, 4, 4), (256, 128, 32, 4, 2, 4), (128, 256, 32, 2, 4, 3), (128, 128, 32, 2, 2, 4),
    (128, 64, 32, 2, 2, 4), (64, 128, 32, 2, 2, 4), (64, 64, 32, 2, 2, 4), (32, 128, 32, 1, 4, 4),
    (64, 32, 32, 2, 1, 4), (32, 64, 32, 1, 2, 4), (32, 32, 32, 1, 1, 4), (16, 128, 32, 1, 2, 4),
    (16, 64, 32, 1, 1, 4), (32, 16, 32, 1, 1, 4), (64, 16, 32, 2, 1, 4), (16, 32, 32, 1, 1, 4), (16, 16, 32, 1, 1, 4),
)  # fmt: skip
# Elements after each row of a tile, so that eight rows of a fragment lie in all banks.
_PAD = 8
_SPLITS = (1, 2, 4, 8, 16)
_LAUNCH_US = 2.0
_COLD_US = 1.5
# What a split's second kernel costs beside reading the parts.
_REDUCE_US = 2.0
# Clocks from a global load to its use, and of a step's barrier and branches.
_GLOBAL_LATENCY, _STEP = 800.0, 60.0
# Bytes that shared memory passes in a clock.
_SHARED_BYTES = 128
# What WMMA reaches of the tensor cores' rate: Hopper gives it all to wgmma alone.
_SHARE = {"sm_90a": 0.6}
_OTHER_SHARE = 0.85
# The L2's bandwidth beside the memory's, and the share of the memory's that a kernel sees.
_L2_FACTOR = 2.2
_MEMORY_SHARE = 0.9
# Warps of an SM that keep its four tensor cores busy.
_BUSY_WARPS = 8.0


def default(gemm: Gemm, device: Device, regime: str) -> Config:
    """The best-predicted of a list of cuts that passes every rule. Raises Unsupported where none does."""
    choices = {knob.name: knob.choices for knob in space(gemm).knobs}
    load = loads(gemm)[0]
    given = _Given.of(gemm, device, regime, load)
    found: list[tuple[float, int, tuple[int, int, int, int, int, int, int]]] = []
    for tile_m, tile_n, tile_k, warps_m, warps_n, stages in _SHAPES:
        if tile_m not in choices["tile_m"] or tile_n not in choices["tile_n"]:
            continue
        for split in _SPLITS:
            if split not in choices["split"]:
                break
            cut = (tile_m, tile_n, tile_k, warps_m, warps_n, stages, split)
            found.append((_time_us(given, *cut, _PAD), len(found), cut))
            if given.blocks(tile_m, tile_n) * split >= 2 * device.units:
                break
    for _, _, cut in sorted(found):
        config = _config(gemm, load, *cut)
        if all(rule.check(gemm, config, device) is None for rule in RULES):
            return config
    raise Unsupported(f"wmma has no default for {gemm} on {device.name}: every cut of its list breaks a rule")


def predict_us(gemm: Gemm, config: Config, device: Device, regime: str) -> float:
    """A rough time: the longest of tensor cores, shared memory, copies' latency, L2 and memory; launches."""
    names = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "split", "pad")
    return _time_us(_Given.of(gemm, device, regime, config["load"]), *(config[name] for name in names))


@dataclass(frozen=True, slots=True)
class _Given:
    """What the model takes of problem and device, as numbers: rates in a clock of an SM, or of the device in a second."""

    m: int
    n: int
    k: int
    batch: int
    units: int
    limits: Limits
    clock_hz: float
    flops_per_clock: float
    bandwidth: float
    memory_us: float
    fixed_us: float
    sum_registers: int

    @classmethod
    def of(cls, gemm: Gemm, device: Device, regime: str, load: str) -> _Given:
        clock_hz = (device.clock_mhz or 1500) * 1e6
        rates = dict(device.peak_tflops)
        rate = rates.get("f16_acc16" if gemm.acc == "f16" else gemm.dtype, 100.0) * 1e12
        bandwidth = (device.peak_gbps or 500.0) * 1e9
        fixed = _LAUNCH_US + (_COLD_US if regime == "isolated" else 0.0)
        for operand in OPERANDS:
            if load == REPACK and copy_width(gemm, operand) < RUN:
                fixed += _LAUNCH_US + 1e6 * 2 * gemm.span(operand) * ELEMENT_BYTES / bandwidth
        return cls(
            gemm.m_max, gemm.n, gemm.k, gemm.batch, device.units, device.limits, clock_hz,
            rate / clock_hz / device.units * _SHARE.get(device.arch, _OTHER_SHARE), bandwidth,
            1e6 * gemm.nbytes / (bandwidth * _MEMORY_SHARE), fixed, SUM_REGISTERS[gemm.acc],
        )  # fmt: skip

    def blocks(self, tile_m: int, tile_n: int) -> int:
        return -(-self.m // tile_m) * -(-self.n // tile_n) * self.batch


def _time_us(
    given: _Given, tile_m: int, tile_n: int, tile_k: int, warps_m: int, warps_n: int, stages: int, split: int, pad: int
) -> float:
    warps = warps_m * warps_n
    fragments_m, fragments_n = max(1, tile_m // warps_m // FRAGMENT), max(1, tile_n // warps_n // FRAGMENT)
    tile_bytes = (tile_m + tile_n) * (tile_k + pad) * ELEMENT_BYTES
    registers = registers_of(fragments_m, fragments_n, given.sum_registers, 1)
    count = given.blocks(tile_m, tile_n) * split
    steps = math.ceil(math.ceil(given.k / tile_k) / split)
    rounds = -(-count // given.units)  # blocks that the busiest SM runs
    together = min(max(1, occupancy(given.limits, warps * WARP, min(registers, 255), stages * tile_bytes)), rounds)
    busy = min(1.0, together * warps / _BUSY_WARPS)
    multiplied = 2 * tile_m * tile_n * tile_k / (given.flops_per_clock * busy)
    # Fragments are read by every warp, tiles written once.
    read = warps * (fragments_m + fragments_n) * FRAGMENT * tile_k * ELEMENT_BYTES
    step = max(multiplied, (read + tile_bytes) / _SHARED_BYTES) + _STEP / together
    working = rounds * steps * step
    waiting = -(-rounds // together) * (steps / (stages - 1) + 2) * _GLOBAL_LATENCY
    l2_us = 1e6 * count * (tile_m + tile_n) * steps * tile_k * ELEMENT_BYTES / (given.bandwidth * _L2_FACTOR)
    extra = given.fixed_us
    if split > 1:
        # Parts are written and read once each, mostly in L2.
        parts = split * given.batch * given.m * given.n * 4
        extra += _REDUCE_US + 1e6 * 2 * parts / (given.bandwidth * _L2_FACTOR)
    return extra + max(1e6 * max(working, waiting) / given.clock_hz, l2_us, given.memory_us)


def _config(
    gemm: Gemm, load: str, tile_m: int, tile_n: int, tile_k: int, warps_m: int, warps_n: int, stages: int, split: int
) -> Config:
    columns = -(-gemm.n // tile_n)
    return Config(
        "wmma",
        (
            ("tile_m", tile_m),
            ("tile_n", tile_n),
            ("tile_k", tile_k),
            ("warps_m", warps_m),
            ("warps_n", warps_n),
            ("stages", stages),
            ("sets", 1),
            ("pad", _PAD),
            ("load", load),
            ("split", split),
            ("raster", next(r for r in (8, 4, 2, 16, 1) if columns % r == 0)),
            ("resident", 0),
        ),
    )
