"""Analytic time model of ``wgmma``: waves, bytes and energy. Pure arithmetic over one config or arrays of them.

The constants lie in ``estimate.json``, which ``benchmarks/fit_estimate.py`` fits to measured configs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.device import Device
from tirgemm.families.base import LoadWaits
from tirgemm.families.common.alignment import LINE_BYTES
from tirgemm.families.common.fit_file import fitted_constants
from tirgemm.families.wgmma.planning.alignment import SECTOR_BYTES, loaded_alignment, loaded_by_tma, stored_by_tma
from tirgemm.families.wgmma.planning.memory import block_bytes
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.families.wgmma.planning.staging import staged_columns
from tirgemm.families.wgmma.planning.tile import CORE_ROWS, ELEMENT_BYTES, SLAB_BYTES, slab_extent, slab_width
from tirgemm.families.wgmma.planning.warpgroups import CONSUMERS
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Regime
from tirgemm.hardware import CLUSTERS_OF_H200

_OPERANDS: tuple[Operand, ...] = ("a", "b")
# Where a device does not say what it has: an H200's.
_CLOCK_MHZ, _MEMORY_GBPS = 1980.0, 4917.0
# Consumers by the rows of a tile; none where there is no such tile.
_CONSUMERS = np.array([CONSUMERS.get(rows, 0) for rows in range(max(CONSUMERS) + 1)])
# Blocks of a cluster -> clusters of so many that are resident at once on as many SMs as there are of one block.
RESIDENT_CLUSTERS = np.array([CLUSTERS_OF_H200[0], *CLUSTERS_OF_H200])


@dataclass(frozen=True, slots=True)
class WgmmaConstants:
    """What an H200 takes; an SM's clocks, unless named otherwise."""

    # A launch, with the way to the first wgmma and from the last; share of the highest clock that short work reaches.
    launch_us: float
    clock_share: float
    # A wgmma for its operands out of shared memory, where n / 2 clocks of arithmetic are fewer; share of the nominal
    # rate that is reached; what a step of k takes beside, and more where blocks share tiles.
    wgmma_clocks: float
    wgmma_clocks_per_column: float
    tensor_rate_share: float
    step_clocks: float
    multicast_step_clocks: float
    # From a TMA load to its bytes, and a factor where it goes to several blocks (fitted to two); into one SM.
    load_latency_clocks: float
    load_latency_clocks_per_kib: float
    multicast_latency_factor: float
    sm_load_bytes_per_clock: float
    # The same of rows that are not aligned to sectors of L2.
    misaligned_row_bytes_per_clock: float
    # A row of a slab that is narrower than 128 bytes, into one SM: TMA takes as long for 32 bytes as for 128.
    narrow_row_clocks: float
    l2_bytes_per_us: float
    # Share of the memory's nominal bandwidth.
    memory_rate_share: float
    # What an SM stores by TMA, and otherwise, where nothing overlaps it.
    tma_store_bytes_per_clock: float
    thread_store_bytes_per_clock: float
    # A chunk of 64 rows by TMA where tile follows tile: what each takes, and its bytes; rows of 16 bytes are half
    # sectors of L2.
    store_chunk_clocks: float
    store_chunk_bytes_per_clock: float
    half_sector_store_factor: float
    # What all SMs store of 16-bit rows that TMA cannot store, with the sectors of L2 that a tile's rows end within.
    misaligned_store_bytes_per_us: float
    # Power caps the clock of long sustained work: from so many microseconds on, fully after as many more.
    power_cap_from_us: float
    power_cap_ramp_us: float
    power_capped_clock_share: float
    pingpong_energy_factor: float
    # Adding parts: by a second kernel; in a cluster.
    reduce_kernel_us: float
    reduce_kernel_bytes_per_us: float
    cluster_reduce_us: float
    cluster_reduce_bytes_per_clock: float
    # A copy of an operand to aligned rows; how much slower copies of both operands by threads are than TMA.
    repack_us: float
    repack_bytes_per_us: float
    copy_slowdown_factor: float


# By regime: isolated calls find a cold L2 and a high clock.
CONSTANTS = fitted_constants(__package__, WgmmaConstants)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ways to cut a problem, by knob: numbers, or arrays of as many.

    ``split``: parts of k that different blocks compute side by side; ``kernel``: whether a second kernel adds them,
    else a cluster; ``stored``: D leaves by TMA; ``copied``: operands come by cp.async; ``chunked``: what TMA stores
    takes as long as its chunks do.
    """

    tile_m: Any
    tile_n: Any
    tile_k: Any
    stages: Any
    pingpong: Any
    resident: Any
    cluster_m: Any
    cluster_n: Any
    swap: Any
    split: Any
    kernel: Any
    stored: Any = True
    copied: Any = False
    chunked: Any = True

    @classmethod
    def of(cls, cut: Plan) -> Cuts:
        """The one way that a plan is."""
        return cls(
            cut.tile_m,
            cut.tile_n,
            cut.tile_k,
            cut.stages,
            cut.warpgroups.pingpong,
            cut.resident,
            cut.cluster_m,
            cut.cluster_n,
            cut.swap,
            cut.cluster.parts,
            cut.cluster.writes_partials,
            not cut.cluster.writes_partials and cut.epilogue == "tma",
            cut.load == "copy",
        )


def estimate_us(cuts: Cuts, gemm: Gemm, device: Device, regime: Regime, constants: WgmmaConstants | None = None) -> Any:
    """Microseconds of one call: the longest of tensor cores, loads, L2 and memory over the waves, then what follows."""
    c, m, n = constants or CONSTANTS[regime], gemm.m_max, gemm.n
    clock = (device.clock_mhz or _CLOCK_MHZ) * c.clock_share
    bandwidth = (device.peak_gbps or _MEMORY_GBPS) * 1e3 * c.memory_rate_share
    rows, columns = np.where(cuts.swap, n, m), np.where(cuts.swap, m, n)
    parted = cuts.split > 1
    in_cluster = parted & ~np.asarray(cuts.kernel, bool)
    cluster = np.where(in_cluster, cuts.split, cuts.cluster_m * cuts.cluster_n)

    tiles = -(-rows // (cuts.tile_m * cuts.cluster_m)) * -(-columns // (cuts.tile_n * cuts.cluster_n)) * gemm.batch
    tiles = tiles * np.where(parted & ~in_cluster, cuts.split, 1)
    waves = -(-tiles // cluster_slots(cuts, cluster, device))
    whole = -(-gemm.k // cuts.tile_k)
    part_steps = -(-whole // cuts.split)
    steps = waves * part_steps * cuts.resident

    wgmma = np.maximum(cuts.tile_n / 2, c.wgmma_clocks + c.wgmma_clocks_per_column * cuts.tile_n) / c.tensor_rate_share
    shared = cuts.cluster_m * cuts.cluster_n > 1
    beside = c.step_clocks + np.where(shared, c.multicast_step_clocks, 0.0)
    compute = steps * (wgmma * (cuts.tile_m // 64) * (cuts.tile_k // 16) + beside) / clock
    loaded, loaded_n = loaded_rows(cuts.tile_m, cuts.swap, gemm), loaded_columns(cuts.tile_n, cuts.swap, gemm)
    stage = 2 * cuts.tile_k * (loaded / cuts.cluster_n + loaded_n / cuts.cluster_m)
    left, right = _alignments(cuts, gemm)
    # Of rows of 128 bytes in the mean, where they do not begin with a line.
    lines, misaligned = (
        2 * cuts.tile_k * (loaded / cuts.cluster_n * of_left + loaded_n / cuts.cluster_m * of_right)
        for of_left, of_right in (
            (2.0 - left / LINE_BYTES, 2.0 - right / LINE_BYTES),
            (left < SECTOR_BYTES, right < SECTOR_BYTES),
        )
    )
    latency = _load_clocks(cuts, stage, c)
    rate = np.maximum(stage / c.sm_load_bytes_per_clock, misaligned / c.misaligned_row_bytes_per_clock)
    rate = np.maximum(rate, c.narrow_row_clocks * _narrow_rows(cuts, gemm))
    loads = steps * np.maximum(rate, latency / ((cuts.stages - 1) * cuts.resident)) / clock
    capped = np.clip((compute - c.power_cap_from_us) / c.power_cap_ramp_us, 0.0, 1.0)
    energy = np.where(cuts.pingpong, c.pingpong_energy_factor, 1.0)
    compute = compute * np.maximum(1.0, 1.0 + (energy / c.power_capped_clock_share - 1.0) * capped)

    # All of these overlap: the longest counts, and a little of those that come near it.
    through_l2, memory = tiles * cluster * part_steps * lines / c.l2_bytes_per_us, gemm.nbytes / bandwidth
    loads = np.maximum(loads, waves * cuts.resident * _store_clocks(cuts, gemm, c) / clock)
    loads = np.maximum(loads, _misaligned_bytes(cuts, gemm) / c.misaligned_store_bytes_per_us)
    longest = np.maximum(np.maximum(compute, loads), np.maximum(through_l2, memory))
    shares = _eighth(np.maximum(compute, loads) / longest) + _eighth(through_l2 / longest) + _eighth(memory / longest)
    time = c.launch_us + longest * np.sqrt(np.sqrt(np.sqrt(shares)))
    stores = np.where(cuts.pingpong, 1, waves) * loaded * cuts.tile_n * 2 / clock
    time = time + np.where(
        cuts.kernel, 0.0, stores / np.where(cuts.stored, c.tma_store_bytes_per_clock, c.thread_store_bytes_per_clock)
    )

    # What adding parts and copying operands takes.
    part = 4 * cuts.tile_m * cuts.tile_n / clock
    reducers = np.minimum(cuts.split, np.maximum(1, cuts.tile_n // 8))
    time = time + np.where(
        cuts.kernel, c.reduce_kernel_us + 8 * cuts.split * gemm.batch * m * n / c.reduce_kernel_bytes_per_us, 0.0
    )
    time = time + np.where(
        in_cluster, c.cluster_reduce_us + cuts.split / reducers * part / c.cluster_reduce_bytes_per_clock, 0.0
    )
    unaligned = [operand for operand in _OPERANDS if not loaded_by_tma(gemm, operand)]
    if unaligned:
        by_threads = sum(np.where(cuts.swap == (operand == "b"), loaded, loaded_n) for operand in unaligned)
        slowdown = 1.0 + (c.copy_slowdown_factor - 1.0) * by_threads / (loaded + loaded_n)
        moved = 4 * sum(gemm.span(operand) for operand in unaligned)
        time = np.where(cuts.copied, time * slowdown, time + c.repack_us + moved / c.repack_bytes_per_us)
    return time


def cluster_slots(cuts: Cuts, cluster: Any, device: Device) -> Any:
    """Clusters of ``cluster`` blocks each that run at once, at least one."""
    held = device.units * cuts.resident * RESIDENT_CLUSTERS[np.minimum(cluster, len(CLUSTERS_OF_H200))]
    return np.maximum(1, held // RESIDENT_CLUSTERS[1])


def load_waits(cut: Plan, gemm: Gemm, device: Device, regime: Regime) -> LoadWaits:
    """What a block waits for: launches and what adding parts takes at least, and the loads of its steps."""
    c, cuts = CONSTANTS[regime], Cuts.of(cut)
    loaded, loaded_n = loaded_rows(cut.tile_m, cut.swap, gemm), loaded_columns(cut.tile_n, cut.swap, gemm)
    stage = 2 * cut.tile_k * (int(loaded) / cut.cluster_n + int(loaded_n) / cut.cluster_m)
    load_us = float(_load_clocks(cuts, stage, c)) / ((device.clock_mhz or _CLOCK_MHZ) * c.clock_share)
    launch_us = c.launch_us
    if cut.cluster.writes_partials:
        launch_us += c.reduce_kernel_us
    if cut.cluster.adds_parts:
        launch_us += c.cluster_reduce_us
    if not cuts.copied and not all(loaded_by_tma(gemm, operand) for operand in _OPERANDS):
        launch_us += c.repack_us
    tiles = -(-gemm.k // cut.tile_k)
    return LoadWaits(launch_us, load_us, cut.stages - 1, -(-tiles // cut.cluster.parts))


def loaded_rows(tile_m: Any, swap: Any, gemm: Gemm) -> Any:
    """Rows of the left operand's tile that are loaded, of one tile or of an array: at most ``tile_m``; the problem's
    rows rounded up to 8, or to whole slabs where k is not contiguous in memory."""
    across = np.where(swap, not gemm.trans_b, gemm.trans_a)
    width = np.where(across, slab_width(tile_m), CORE_ROWS)
    return np.minimum(tile_m, -(-np.where(swap, gemm.n, gemm.m_max) // width) * width)


def loaded_columns(tile_n: Any, swap: Any, gemm: Gemm) -> Any:
    """Columns of the right operand's tile that are loaded, of one tile or of an array: at most those that it has room
    for; the problem's columns rounded up to 8, or to whole slabs where k is not contiguous in memory."""
    width = np.where(_right_across(swap, gemm), slab_width(tile_n), CORE_ROWS)
    return np.minimum(held_columns(tile_n, swap, gemm), -(-np.where(swap, gemm.m_max, gemm.n) // width) * width)


def held_columns(tile_n: Any, swap: Any, gemm: Gemm) -> Any:
    """Columns of the right operand's tile that shared memory has room for."""
    return np.where(_right_across(swap, gemm), slab_extent(tile_n), tile_n)


def consumers_of(tile_m: Any, pingpong: Any) -> Any:
    """Consumer warpgroups of a block, of one tile or of an array: none where there is no such tile."""
    return np.where(pingpong, 2, _CONSUMERS[tile_m])


def _right_across(swap: Any, gemm: Gemm) -> Any:
    """Whether k is not contiguous in the right operand."""
    return np.where(swap, gemm.trans_a, not gemm.trans_b)


def _alignments(cuts: Cuts, gemm: Gemm) -> tuple[Any, Any]:
    """Bytes, at most those of a line of L2, to which rows that TMA loads for a tile are aligned, of the left operand
    and of the right: less than the operand's own where k is not contiguous in it and tiles but the first begin between
    lines. All those of the left operand begin with one."""
    left, right = _by_side(cuts, gemm, loaded_alignment)
    offset = ELEMENT_BYTES * np.asarray(cuts.tile_n)
    several = np.where(cuts.swap, gemm.m_max, gemm.n) > cuts.tile_n
    between = _right_across(cuts.swap, gemm) & several & _right_by_tma(cuts, gemm)
    return left, np.where(between, np.minimum(right, offset & -offset), right)


def _narrow_rows(cuts: Cuts, gemm: Gemm) -> Any:
    """Rows of slabs narrower than 128 bytes (``slab_width``) that a block loads by TMA for one step: of the right
    operand, where k is not contiguous in memory."""
    width = slab_width(cuts.tile_n)
    narrow = _right_across(cuts.swap, gemm) & (width * ELEMENT_BYTES < SLAB_BYTES)
    rows = loaded_columns(cuts.tile_n, cuts.swap, gemm) // width * cuts.tile_k / cuts.cluster_m
    return np.where(narrow & _right_by_tma(cuts, gemm), rows, 0.0)


def _right_by_tma(cuts: Cuts, gemm: Gemm) -> Any:
    """Whether TMA loads the right operand, or its copy to aligned rows: else threads copy it."""
    _, by_tma = _by_side(cuts, gemm, loaded_by_tma)
    return ~np.asarray(cuts.copied, bool) | (by_tma > 0)


def _store_clocks(cuts: Cuts, gemm: Gemm, c: WgmmaConstants) -> Any:
    """Clocks in which an SM stores a tile by TMA, chunk by chunk (``Staging.chunk``); parts that a cluster adds are
    left out."""
    if not stored_by_tma(gemm):
        return 0.0
    stages = 2 * cuts.stages * cuts.tile_k * (cuts.tile_m + held_columns(cuts.tile_n, cuts.swap, gemm))
    room = block_bytes(cuts.resident) - stages
    size = DTYPE_BYTES[gemm.out]
    chunk = staged_columns(cuts.tile_n, gemm.beta, consumers_of(cuts.tile_m, cuts.pingpong), room, size)
    clocks = c.store_chunk_clocks + 64 * size * chunk / c.store_chunk_bytes_per_clock
    half_sectors = (chunk * size < SECTOR_BYTES) & ~np.asarray(cuts.swap, bool)
    clocks = clocks * np.where(half_sectors, c.half_sector_store_factor, 1.0)
    by_chunks = np.asarray(cuts.stored, bool) & np.asarray(cuts.chunked, bool) & (np.asarray(cuts.split) == 1)
    return np.where(by_chunks, cuts.tile_m // 64 * -(-cuts.tile_n // chunk) * clocks, 0.0)


def _misaligned_bytes(cuts: Cuts, gemm: Gemm) -> Any:
    """Bytes of D, where its 16-bit rows cannot be stored by TMA, and of the sectors of 32 bytes that a tile's rows end
    within."""
    if stored_by_tma(gemm) or DTYPE_BYTES[gemm.out] > ELEMENT_BYTES:
        return 0.0
    row = ELEMENT_BYTES * np.where(cuts.swap, 64, cuts.tile_n)
    nbytes = ELEMENT_BYTES * gemm.m_max * gemm.n * gemm.batch
    return np.where(cuts.kernel, 0.0, nbytes * (1 + 32 / row))


def _load_clocks(cuts: Cuts, stage: Any, c: WgmmaConstants) -> Any:
    """Clocks from a TMA load of ``stage`` bytes to its bytes."""
    factor = np.where(cuts.cluster_m * cuts.cluster_n > 1, c.multicast_latency_factor, 1.0)
    return (c.load_latency_clocks + c.load_latency_clocks_per_kib / 1024 * stage) * factor


def _by_side(cuts: Cuts, gemm: Gemm, of: Callable[[Gemm, Operand], float]) -> tuple[Any, Any]:
    """A quantity of A and of B, as one of the left operand and one of the right."""
    in_a, in_b = (float(of(gemm, operand)) for operand in _OPERANDS)
    return np.where(cuts.swap, in_b, in_a), np.where(cuts.swap, in_a, in_b)


def _eighth(share: Any) -> Any:
    """The eighth power by products, which are the same on every machine; a library's power is not."""
    square = share * share
    fourth = square * square
    return fourth * fourth
