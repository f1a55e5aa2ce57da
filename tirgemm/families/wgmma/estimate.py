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
from tirgemm.hardware import CLUSTERS_OF_H200

_OPERANDS: tuple[Operand, ...] = ("a", "b")
# Blocks of a cluster -> clusters of so many that are resident at once on as many SMs as there are of one block.
_CLUSTERS = np.array([CLUSTERS_OF_H200[0], *CLUSTERS_OF_H200])


@dataclass(frozen=True, slots=True)
class Constants:
    """What an H200 takes: times in microseconds, rates in bytes a microsecond, clocks in clocks of an SM."""

    # A launch, with the way to the first wgmma and from the last; share of the highest clock that short work reaches.
    launch_us: float = 2.468
    clock_share: float = 0.8666
    # Clocks of a wgmma for its operands out of shared memory, where n / 2 of arithmetic are fewer; share of the nominal
    # rate that is reached; clocks that a step of k takes beside,
    # and more where blocks share tiles.
    operand_clocks: float = 12.54
    operand_clocks_a_column: float = 0.3759
    tensor_share: float = 0.8981
    step_clocks: float = 25.08
    shared_step_clocks: float = 12.65
    # Clocks from a TMA load to its bytes, and more by KiB, and a factor where it goes to two blocks; bytes a clock into
    # one SM.
    latency: float = 1405.0
    latency_a_kib: float = 27.82
    multicast: float = 1.128
    sm_bytes: float = 112.0
    # L2; the share of the memory's nominal bandwidth; bytes a clock that an SM stores by TMA, and otherwise.
    l2: float = 1.355e7
    memory_share: float = 0.8919
    store_bytes: float = 15.98
    other_store_bytes: float = 9.46
    # Power caps the clock of long sustained work: from so many microseconds on, fully after as many more.
    capped_from_us: float = 0.0
    capped_over_us: float = 28.11
    capped_clock: float = 0.8441
    pingpong_energy: float = 0.996
    # Adding parts: by a second kernel; in a cluster, with its bytes a clock; out of memory; stream's imbalance.
    kernel_us: float = 0.5797
    kernel: float = 4.274e6
    cluster_us: float = 0.6364
    cluster_bytes: float = 16.12
    memory_us: float = 2.578
    memory_bytes: float = 8.049
    stream_us: float = 4.352
    stream_bytes: float = 6.119
    # A copy of an operand to aligned rows; how much slower copies by threads are than TMA.
    repack_us: float = 2.331
    repack: float = 3.672e6
    copy_slower: float = 1.5


# By regime: isolated calls find a cold L2 and a high clock.
SUSTAINED = Constants()
ISOLATED = Constants(
    launch_us=6.009,
    clock_share=0.9164,
    operand_clocks=12.42,
    operand_clocks_a_column=0.3805,
    tensor_share=0.8873,
    step_clocks=39.14,
    shared_step_clocks=7.428,
    latency=1815.0,
    latency_a_kib=14.46,
    multicast=1.221,
    l2=1.982e7,
    memory_share=0.9,
    store_bytes=29.25,
    other_store_bytes=10.13,
    capped_from_us=19.81,
    capped_over_us=348.9,
    capped_clock=0.8186,
    pingpong_energy=0.9822,
    kernel_us=2.311,
    kernel=4.26e6,
    cluster_us=1.13,
    cluster_bytes=12.46,
    memory_us=1.681,
    memory_bytes=4.277,
    stream_us=0.005231,
    stream_bytes=3.415,
    repack_us=3.797,
    repack=3.041e6,
)


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


def estimate_us(cuts: Cuts, gemm: Gemm, device: Device, regime: str, constants: Constants | None = None) -> Any:
    """Microseconds of one call: the longest of tensor cores, loads, L2 and memory over the waves, then what follows."""
    c, m, n = constants or (SUSTAINED if regime == "sustained" else ISOLATED), gemm.m_max, gemm.n
    clock = (device.clock_mhz or 1980.0) * c.clock_share
    bandwidth = (device.peak_gbps or 4917.0) * 1e3 * c.memory_share
    rows, columns = np.where(cuts.swap, n, m), np.where(cuts.swap, m, n)
    parted = cuts.split > 1
    in_cluster = parted & ~np.asarray(cuts.kernel | cuts.memory, bool)
    cluster = np.where(in_cluster, cuts.split, cuts.cluster_m * cuts.cluster_n)

    tiles = -(-rows // (cuts.tile_m * cuts.cluster_m)) * -(-columns // (cuts.tile_n * cuts.cluster_n)) * gemm.batch
    tiles = tiles * np.where(parted & ~in_cluster, cuts.split, 1)
    slots = np.maximum(1, device.units * cuts.resident * _CLUSTERS[np.minimum(cluster, 8)] // _CLUSTERS[1])
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
    capped = np.clip((compute - c.capped_from_us) / c.capped_over_us, 0.0, 1.0)
    energy = np.where(cuts.pingpong, c.pingpong_energy, 1.0)
    compute = compute * np.maximum(1.0, 1.0 + (energy / c.capped_clock - 1.0) * capped)

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
