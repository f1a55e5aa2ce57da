"""The config without tuning, and the time that an analytic model gives a config. Pure; well under a millisecond."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import Unsupported
from tirgemm.expr import evaluate
from tirgemm.families.base import LoadWaits, accepted
from tirgemm.families.common.alignment import access_width
from tirgemm.families.common.fit_file import fitted_constants
from tirgemm.families.simt.loads import loads_per_fma
from tirgemm.families.simt.rules import RULES
from tirgemm.families.simt.space import space
from tirgemm.families.simt.tiling import ThreadTiling, blocks, tiling, transposes
from tirgemm.families.simt.wavefronts import fragment_wavefronts
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Range, Regime
from tirgemm.hardware import WARP, occupancy

# block_m, block_n, block_k, thread_m, thread_n. Largest first: where the model calls two equal, data is reused more.
_SHAPES = (
    (128, 128, 16, 8, 16),
    (256, 128, 16, 16, 8),
    (128, 128, 8, 8, 8),
    (128, 64, 8, 8, 8),
    (64, 128, 8, 8, 8),
    (64, 64, 16, 8, 4),
    (64, 32, 16, 4, 4),
    (32, 64, 16, 4, 4),
    (32, 32, 32, 2, 4),
    (16, 128, 16, 2, 8),
    (128, 16, 16, 8, 2),
    (16, 64, 32, 2, 4),
    (64, 16, 32, 4, 2),
    (16, 32, 32, 2, 2),
    (32, 16, 32, 2, 2),
    (8, 128, 16, 1, 8),
    (128, 8, 16, 8, 1),
    (8, 64, 32, 1, 4),
    (64, 8, 32, 4, 1),
    (16, 16, 32, 1, 2),
    (8, 32, 32, 1, 2),
    (32, 8, 32, 2, 1),
    (8, 16, 32, 1, 1),
    (16, 8, 32, 1, 1),
    (8, 8, 32, 1, 1),
)
# The wide shapes have two tiles of each operand: with 8 warps an SM a second barrier a step would be felt.
_WIDE = 128  # outputs of a thread
_SCHEDULERS = 4
# Where a device does not say what it has.
_CLOCK_MHZ, _MEMORY_GBPS, _F32_TFLOPS = 1500, 500.0, 20.0


@dataclass(frozen=True, slots=True)
class SimtConstants:
    """What the model is fitted with: ``estimate.json``."""

    launch_us: float
    # From a global load to its use: what a step of k costs where nothing hides it.
    load_latency_clocks: float
    # From a barrier until every warp has its first fragments: lost where no other block of the SM computes meanwhile.
    barrier_clocks: float
    # Instructions of a step of k beside its FMAs, fragments and copies: barriers, addresses, the branch.
    step_instructions: float
    # How much issue slots lose to the banks: an H200 ran 2048x2048x2048:f16:nt 6.5 % faster with lanes_n=2 than with 8,
    # which are 8 and 12 wavefronts a step.
    bank_loss_factor: float
    # The L2's bandwidth beside the memory's, and the share of the memory's that a kernel sees.
    l2_rate_factor: float
    memory_rate_share: float
    # Warps of an SM that keep its schedulers busy with independent FMAs.
    busy_warps: float


CONSTANTS = fitted_constants(__package__, SimtConstants)


def default(gemm: Gemm, device: Device, regime: Regime) -> Config:
    """The best-predicted of a list of shapes that passes every rule."""
    choices = {knob.name: knob.choices for knob in space(gemm).knobs}
    for config in sorted(_candidates(gemm, choices), key=lambda config: predict_us(gemm, config, device, regime)):
        if accepted(RULES, gemm, config, device):
            return config
    raise Unsupported(f"simt has no default for {gemm} on {device.name}: every shape of its list breaks a rule")


def predict_us(gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
    """A rough time: the longest of issue slots, shared copies' latency, L2 and memory, and a launch.

    A block without threads, which no rule passes, takes for ever.
    """
    c, cut = CONSTANTS[regime], tiling(gemm, config)
    if not cut.threads:
        return math.inf
    count = evaluate(blocks(gemm, cut.block_m, cut.block_n), gemm.m_max)
    steps = -(-gemm.k // cut.block_k)
    resident = max(1, occupancy(device.limits, cut.threads, min(cut.registers, 255), cut.shared_bytes))
    rounds = -(-count // device.units)  # blocks that the busiest SM runs
    together = min(resident, rounds)

    thread_m, thread_n = cut.pieces_m * cut.piece_m, cut.pieces_n * cut.piece_n
    fmas = thread_m * thread_n
    if cut.reads == "fragments":
        loads = cut.pieces_m * max(1, cut.piece_m / 4) + cut.pieces_n * max(1, cut.piece_n / 4)
        wavefronts = float(fragment_wavefronts(cut))
    else:
        # The compiler removes some: a kernel without wide accesses is a rung of the ladder, its time no one's choice.
        asked = loads_per_fma(cut)
        loads = wavefronts = fmas * (asked.shared_instructions + asked.global_instructions)
    copies = _copy_slots(gemm, cut) / cut.block_k if cut.shares else 0.0
    share = fmas / (fmas + loads + copies + c.step_instructions / cut.block_k)
    # Every wavefront takes a clock of the SM's one data stage, every FMA of a warp a clock of one of four schedulers.
    share /= 1 + c.bank_loss_factor * (_SCHEDULERS * wavefronts / fmas) ** 2
    busy = min(1.0, together * cut.threads / WARP / c.busy_warps)
    clock_hz = (device.clock_mhz or _CLOCK_MHZ) * 1e6
    flops_per_clock = dict(device.peak_tflops).get("f32", _F32_TFLOPS) * 1e12 / clock_hz / device.units
    compute = rounds * 2 * cut.block_m * cut.block_n * steps * cut.block_k / (flops_per_clock * share * busy)
    if together == 1:
        compute += rounds * steps * c.barrier_clocks
    waiting = -(-rounds // together) * steps * c.load_latency_clocks / _ahead(cut)

    size = DTYPE_BYTES[gemm.dtype]
    bandwidth = (device.peak_gbps or _MEMORY_GBPS) * 1e9
    through_l2 = count * (cut.block_m + cut.block_n) * steps * cut.block_k * size / (bandwidth * c.l2_rate_factor)
    memory = _nbytes(gemm) / (bandwidth * c.memory_rate_share)
    return c.launch_us + 1e6 * max(max(compute, waiting) / clock_hz, through_l2, memory)


def load_waits(gemm: Gemm, config: Config, device: Device, regime: Regime) -> LoadWaits:
    """What a block waits for: a launch, and the loads of its steps."""
    c, cut = CONSTANTS[regime], tiling(gemm, config)
    load_us = c.load_latency_clocks / (device.clock_mhz or _CLOCK_MHZ)
    return LoadWaits(c.launch_us, load_us, _ahead(cut), -(-gemm.k // cut.block_k))


def _ahead(cut: ThreadTiling) -> int:
    """Steps whose loads are under way at once."""
    return max(1, cut.buffers - 1) if cut.asynchronous else 1


@lru_cache(maxsize=64)
def _nbytes(gemm: Gemm) -> int:
    return gemm.nbytes


def _copy_slots(gemm: Gemm, cut: ThreadTiling) -> float:
    """Instructions a thread spends on copying both tiles: loads, conversions, stores to shared memory."""
    slots = 0.0
    sides: tuple[tuple[Operand, int, int], ...] = (("a", cut.block_m, cut.width_a), ("b", cut.block_n, cut.width_b))
    for operand, block, width in sides:
        vectors = max(1.0, block * cut.block_k / width / cut.threads)
        conversions = 0 if gemm.dtype == gemm.acc else width
        stores = width if transposes(gemm, operand) else width / 4
        slots += vectors * (1 + conversions + stores)
    return slots


def _candidates(gemm: Gemm, choices: Mapping[str, tuple[Value, ...]]) -> Iterator[Config]:
    turned = transposes(gemm, "a") or transposes(gemm, "b")
    narrow = min(access_width(gemm, "a"), access_width(gemm, "b")) < 4
    for block_m, block_n, block_k, thread_m, thread_n in _SHAPES:
        if block_m not in choices["block_m"] or block_n not in choices["block_n"]:
            continue
        threads_m, threads_n = block_m // thread_m, block_n // thread_n
        wide = thread_m * thread_n >= _WIDE
        if wide and narrow:
            continue  # every element on its way has an address and a guard of its own: registers spill
        lanes = [n for n in (8, 16, 4, 32, 2) if threads_n % n == 0 and threads_m % (WARP // n) == 0]
        columns = -(-gemm.n // block_n)
        # The widest loads that still give every thread one of both tiles, or else of the larger one.
        vectors = [v for v in (8, 4, 2, 1) if v in choices["vector"]]
        most = min(block_m, block_n) * block_k // (threads_m * threads_n)
        most = most or max(block_m, block_n) * block_k // (threads_m * threads_n)
        knobs: dict[str, Value] = {
            "block_m": block_m,
            "block_n": block_n,
            "block_k": block_k,
            "thread_m": thread_m,
            "thread_n": thread_n,
            "lanes_n": lanes[0],
            "piece": min(4, max(thread_m, thread_n)),
            "vector": next(v for v in vectors if v <= most or v == 1),
            "pad": 4 if turned else 0,
            "unroll": block_k if wide else 8,
            "pipeline": "double" if wide else "register",
            "raster": next(r for r in (8, 4, 2, 16, 1) if columns % r == 0),
            "resident": 2 if block_m * block_n == 128 * 128 and not isinstance(gemm.m, Range) else 0,
            "reads": "fragments",
            "lane_order": "z" if 2 <= lanes[0] <= WARP // 2 else "row",
            "grid": choices["grid"][0],
            "barriers": 1 if wide else 2,
        }
        yield Config("simt", tuple(knobs.items()))
