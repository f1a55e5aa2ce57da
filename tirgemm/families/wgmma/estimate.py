"""The time that an analytic model gives ways to cut a problem: waves, bytes and energy. Pure arithmetic, many at once.

The constants are fitted to configs that ``benchmarks/search_configs.py`` measured on an H200, by
``benchmarks/fit_estimate.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.device import Device
from tirgemm.families.wgmma.alignment import loaded_by_tma
from tirgemm.families.wgmma.plan import Plan
from tirgemm.gemm import Gemm, Operand

_OPERANDS: tuple[Operand, ...] = ("a", "b")
# Blocks of a cluster -> the share of SMs that clusters of so many reach, as an H200's driver counts them.
_CLUSTERED = np.array([1.0, 1.0, 1.0, 0.89, 0.91, 0.84, 0.78, 0.8, 0.91])


@dataclass(frozen=True, slots=True)
class Constants:
    """What an H200 takes: times in microseconds, rates in bytes a microsecond, clocks in clocks of an SM."""

    # A launch, with the way to the first wgmma and from the last; share of the highest clock that short work reaches.
    launch_us: float = 2.381
    clock_share: float = 0.8624
    # Clocks of a wgmma for its operands out of shared memory, where n / 2 of arithmetic are fewer; share of the nominal
    # rate that is reached; clocks that a step of k takes beside,
    # and more where blocks share tiles.
    operand_clocks: float = 11.7
    operand_clocks_a_column: float = 0.3837
    tensor_share: float = 0.9042
    step_clocks: float = 25.79
    shared_step_clocks: float = 14.41
    # Clocks from a TMA load to its bytes, and more by KiB, and a factor where it goes to two blocks; bytes a clock into
    # one SM.
    latency: float = 1626
    latency_a_kib: float = 19.62
    multicast: float = 1.088
    sm_bytes: float = 112
    # L2; the share of the memory's nominal bandwidth; bytes a clock that an SM stores by TMA, and otherwise.
    l2: float = 1.325e07
    memory_share: float = 0.8958
    store_bytes: float = 13.22
    other_store_bytes: float = 8.296
    # Power caps the clock of long sustained work: from so many microseconds on, fully after as many more.
    capped_from_us: float = 8e-06
    capped_over_us: float = 38.96
    capped_clock: float = 0.8461
    pingpong_energy: float = 0.9974
    # Where the clock is high, ping-pong's order costs more than its overlap gives.
    pingpong_isolated: float = 1.06
    # Adding parts: by a second kernel; in a cluster, with its bytes a clock; out of memory; stream's imbalance.
    kernel_us: float = 0.6621
    kernel: float = 4.214e06
    cluster_us: float = 0.7533
    cluster_bytes: float = 19.84
    memory_us: float = 2.476
    memory_bytes: float = 8.643
    stream_us: float = 5.231
    stream_bytes: float = 6.856
    # A copy of an operand to aligned rows; how much slower copies by threads are than TMA.
    repack_us: float = 1.679
    repack: float = 3.767e06
    copy_slower: float = 1.5


H200 = Constants()


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ways to cut a problem, by knob: numbers, or arrays of as many. ``kernel``, ``memory``: how parts are added, else in
    a cluster; ``stored``: D leaves by TMA; ``copied``: operands come by cp.async.
    """

    tile_m: Any
    tile_n: Any
    tile_k: Any
    stages: Any
    pingpong: Any
    stream: Any
    resident: Any
    cluster_m: Any
    cluster_n: Any
    swap: Any
    split: Any
    kernel: Any
    memory: Any
    stored: Any = True
    copied: Any = False

    @classmethod
    def of(cls, cut: Plan) -> Cuts:
        """The one way that a plan is."""
        return cls(
            cut.tile_m, cut.tile_n, cut.tile_k, cut.stages, cut.pingpong, cut.stream, cut.resident, cut.cluster_m,
            cut.cluster_n, cut.swap, cut.split, cut.partials, cut.in_memory, not cut.partials and cut.epilogue == "tma",
            cut.load == "copy",
        )  # fmt: skip


def estimate_us(cuts: Cuts, gemm: Gemm, device: Device, regime: str, constants: Constants = H200) -> Any:
    """Microseconds of one call: the longest of tensor cores, loads, L2 and memory over the waves, then what follows."""
    c, m, n = constants, gemm.m_max, gemm.n
    clock = (device.clock_mhz or 1980.0) * c.clock_share
    bandwidth = (device.peak_gbps or 4917.0) * 1e3 * c.memory_share
    rows, columns = np.where(cuts.swap, n, m), np.where(cuts.swap, m, n)
    parted = cuts.split > 1
    in_cluster = parted & ~np.asarray(cuts.kernel | cuts.memory, bool)
    cluster = np.where(in_cluster, cuts.split, cuts.cluster_m * cuts.cluster_n)

    tiles = -(-rows // (cuts.tile_m * cuts.cluster_m)) * -(-columns // (cuts.tile_n * cuts.cluster_n)) * gemm.batch
    tiles = tiles * np.where(parted & ~in_cluster, cuts.split, 1)
    slots = np.maximum(1, (device.units * cuts.resident * _CLUSTERED[np.minimum(cluster, 8)]).astype(int) // cluster)
    waves = np.where(cuts.stream, tiles / slots, -(-tiles // slots))
    whole = -(-gemm.k // cuts.tile_k)
    part_steps = -(-whole // cuts.split)
    steps = waves * part_steps * cuts.resident

    wgmma = np.maximum(cuts.tile_n / 2, c.operand_clocks + c.operand_clocks_a_column * cuts.tile_n) / c.tensor_share
    shared = cuts.cluster_m * cuts.cluster_n > 1
    beside = c.step_clocks + np.where(shared, c.shared_step_clocks, 0.0)
    compute = steps * (wgmma * (cuts.tile_m // 64) * (cuts.tile_k // 16) + beside) / clock
    loaded = np.minimum(cuts.tile_m, -(-rows // 8) * 8)
    stage = 2 * cuts.tile_k * (loaded / cuts.cluster_n + cuts.tile_n / cuts.cluster_m)
    latency = (c.latency + c.latency_a_kib / 1024 * stage) * np.where(shared, c.multicast, 1.0)
    loads = steps * np.maximum(stage / c.sm_bytes, latency / ((cuts.stages - 1) * cuts.resident)) / clock
    if regime == "sustained":
        capped = np.clip((compute - c.capped_from_us) / c.capped_over_us, 0.0, 1.0)
        energy = np.where(cuts.pingpong, c.pingpong_energy, 1.0)
        compute = compute * np.maximum(1.0, 1.0 + (energy / c.capped_clock - 1.0) * capped)
    else:
        compute = compute * np.where(cuts.pingpong, c.pingpong_isolated, 1.0)

    # All of these overlap: the longest counts, and a little of those that come near it.
    through_l2, memory = tiles * cluster * part_steps * stage / c.l2, gemm.nbytes / bandwidth
    longest = np.maximum(np.maximum(compute, loads), np.maximum(through_l2, memory))
    shares = (np.maximum(compute, loads) / longest) ** 8 + (through_l2 / longest) ** 8 + (memory / longest) ** 8
    time = c.launch_us + longest * shares**0.125
    stores = np.where(cuts.pingpong, 1, waves) * loaded * cuts.tile_n * 2 / clock
    time = time + np.where(cuts.kernel, 0.0, stores / np.where(cuts.stored, c.store_bytes, c.other_store_bytes))

    # What adding parts and copying operands takes.
    part = 4 * cuts.tile_m * cuts.tile_n / clock
    reducers = np.minimum(cuts.split, np.maximum(1, cuts.tile_n // 8))
    time = time + np.where(cuts.kernel, c.kernel_us + 8 * cuts.split * gemm.batch * m * n / c.kernel, 0.0)
    time = time + np.where(in_cluster, c.cluster_us + cuts.split / reducers * part / c.cluster_bytes, 0.0)
    time = time + np.where(cuts.memory, c.memory_us + (cuts.split - 1) * part / c.memory_bytes, 0.0)
    time = time + np.where(cuts.stream, c.stream_us + part / c.stream_bytes, 0.0)
    unaligned = sum(gemm.span(operand) for operand in _OPERANDS if not loaded_by_tma(gemm, operand))
    if unaligned:
        time = np.where(cuts.copied, time * c.copy_slower, time + c.repack_us + 4 * unaligned / c.repack)
    return time
