"""The time that an analytic model gives a plan: waves, bytes and energy. Pure arithmetic.

The constants are fitted to configs measured on an H200 by ``benchmarks/search_configs.py`` (``benchmarks/fit_estimate.py``
fits them): within 5 % of the measured time on average for the faster half of the configs.
"""

from __future__ import annotations

from tirgemm.device import Device
from tirgemm.expr import evaluate
from tirgemm.families.wgmma.alignment import loaded_by_tma
from tirgemm.families.wgmma.names import COPY, REPACK, TMA
from tirgemm.families.wgmma.plan import Plan
from tirgemm.gemm import Operand

_OPERANDS: tuple[Operand, ...] = ("a", "b")

# Share of the highest clock that short work reaches.
_CLOCK_SHARE = 0.89
# Microseconds of a launch, with the way to the first wgmma and from the last.
LAUNCH_US = 2.6
# Clocks of one wgmma of n columns: n / 2 of arithmetic, or this for its operands out of shared memory; share of the
# nominal rate that is reached; clocks that a step of k takes beside.
_OPERAND_CLOCKS, _OPERAND_CLOCKS_A_COLUMN, _TENSOR_SHARE, _STEP_CLOCKS = 14.7, 0.356, 0.887, 17.0
# Clocks from a TMA load to its bytes, and more by KiB; bytes a clock into one SM.
_LATENCY, _LATENCY_A_KIB, _SM_BYTES = 1860.0, 17.9, 112.0
# Bytes a microsecond of L2; share of the memory's nominal bandwidth; bytes a clock that an SM stores by TMA.
_L2_BYTES_US, _MEMORY_SHARE, _STORE_BYTES = 12.1e6, 0.88, 14.0
# Long sustained work is capped in power, so in clock: from so many microseconds on, fully after as many more.
_CAPPED_FROM_US, _CAPPED_OVER_US, _CAPPED_CLOCK = 8.0, 27.7, 0.828
_PINGPONG_ENERGY, _MULTICAST_ENERGY = 1.0, 1.0
# Where the clock is high, ping-pong's order costs more than its overlap gives.
_PINGPONG_ISOLATED = 1.06
# Adding parts: a second kernel and its bytes a microsecond; a cluster's exchange and its bytes a clock; what one block
# leaves another, and its bytes a clock.
_KERNEL_US, _KERNEL_BYTES_US = 0.4, 4.2e6
_CLUSTER_US, _CLUSTER_BYTES = 0.5, 19.3
_STREAM_US, _STREAM_BYTES = 5.2, 7.2
_MEMORY_US, _MEMORY_BYTES = 2.0, 30.0
# A copy of an operand to aligned rows, and its bytes a microsecond; how much slower copies by threads are than TMA.
_REPACK_US, _REPACK_BYTES_US, _COPY_SLOWER = 1.8, 3.6e6, 1.5
# Blocks of a cluster -> the share of SMs that clusters of so many reach, as an H200's driver counts them.
_CLUSTERED = {3: 0.89, 4: 0.91, 5: 0.84, 6: 0.78, 7: 0.8, 8: 0.91}


def estimate_us(cut: Plan, device: Device, regime: str) -> float:
    """Microseconds of one call: the longest of tensor cores, loads, L2 and memory over the waves, then what follows."""
    gemm, cluster = cut.gemm, cut.cluster
    clock = (device.clock_mhz or 1980.0) * _CLOCK_SHARE
    bandwidth = (device.peak_gbps or 3000.0) * 1e3 * _MEMORY_SHARE
    tiles = evaluate(cut.tiles_m, gemm.m_max) * evaluate(cut.tiles_n, gemm.m_max) * cut.slices
    tiles *= cut.split if cut.in_memory else 1
    slots = max(1, int(cut.slots * _CLUSTERED.get(cluster, 1.0)) // cluster)
    waves = tiles / slots if cut.stream else -(-tiles // slots)
    steps = waves * cut.split_steps * cut.resident

    narrow = _OPERAND_CLOCKS + _OPERAND_CLOCKS_A_COLUMN * cut.tile_n
    wgmma = max(cut.tile_n / 2, narrow) / _TENSOR_SHARE
    compute = steps * (wgmma * (cut.tile_m // 64) * (cut.tile_k // 16) + _STEP_CLOCKS) / clock
    rows = min(cut.tile_m, -(-cut.most_rows // 8) * 8)
    stage = 2 * cut.tile_k * (rows / cut.cluster_n + cut.tile_n / cut.cluster_m)
    latency = (_LATENCY + _LATENCY_A_KIB * stage / 1024) / ((cut.stages - 1) * cut.resident)
    loads = steps * max(stage / _SM_BYTES, latency) / clock
    compute *= _energy(cut, compute) if regime == "sustained" else _PINGPONG_ISOLATED if cut.pingpong else 1.0

    through_l2 = tiles * cluster * cut.split_steps * stage / _L2_BYTES_US
    longest = max(compute, loads)
    moved: float = (longest**8 + (gemm.nbytes / bandwidth) ** 8 + through_l2**8) ** 0.125
    by_tma = not cut.partials and cut.epilogue == TMA
    store = (1 if cut.pingpong else waves) * rows * cut.tile_n * 2 / _STORE_BYTES / clock if by_tma else 0.0
    time = LAUNCH_US + moved + store + _adding(cut, clock) + _copying(cut)
    return time * (_COPY_SLOWER if cut.load == COPY else 1.0)


def _energy(cut: Plan, compute_us: float) -> float:
    """How much longer tensor cores take once power caps the clock."""
    saved = (_PINGPONG_ENERGY if cut.pingpong else 1.0) * (_MULTICAST_ENERGY if cut.shared_by > 1 else 1.0)
    capped = min(1.0, max(0.0, (compute_us - _CAPPED_FROM_US) / _CAPPED_OVER_US))
    return max(1.0, 1.0 + (saved / _CAPPED_CLOCK - 1.0) * capped)


def _adding(cut: Plan, clock: float) -> float:
    """Microseconds of adding parts of a tile."""
    gemm, nbytes = cut.gemm, 4 * cut.tile_m * cut.tile_n
    if cut.partials:
        return _KERNEL_US + 8 * cut.split * gemm.batch * gemm.m_max * gemm.n / _KERNEL_BYTES_US
    if cut.in_cluster:
        return _CLUSTER_US + cut.split * nbytes / cut.reducers / _CLUSTER_BYTES / clock
    if cut.stream:
        return _STREAM_US + nbytes / _STREAM_BYTES / clock
    if cut.in_memory:
        return _MEMORY_US + (cut.split - 1) * nbytes / _MEMORY_BYTES / clock
    return 0.0


def _copying(cut: Plan) -> float:
    """Microseconds of copying operands to aligned rows."""
    if cut.load != REPACK:
        return 0.0
    elements = sum(cut.gemm.span(operand) for operand in _OPERANDS if not loaded_by_tma(cut.gemm, operand))
    return _REPACK_US + 4 * elements / _REPACK_BYTES_US
