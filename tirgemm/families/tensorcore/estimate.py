"""Analytic time model of blocked mma.sync and WMMA kernels, to rank configs without running them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families.base import LoadWaits
from tirgemm.families.common.fit_file import fitted_constants
from tirgemm.families.tensorcore.tiling import Tiling, repacked_bytes
from tirgemm.gemm import DTYPE_BYTES, Gemm, Regime


@dataclass(frozen=True, slots=True)
class MmaSyncConstants:
    """What the model is fitted with: ``estimate.json``."""

    launch_us: float
    # A pass over memory between kernels of a call: the gap, beside its bytes.
    kernel_us: float
    # Share of the nominal tensor-core rate that long work of mma.sync reaches on sm_90a, where only wgmma reaches all
    # of it, under the clock that its power leaves.
    sync_rate_share_sm_90a: float
    # What an SM reads of shared memory.
    shared_bytes_per_clock: float
    # From a copy's issue to its arrival; of a step's barrier and branch; of a block's start and end.
    copy_latency_clocks: float
    step_clocks: float
    block_clocks: float
    # The L2's bandwidth beside the memory's, and the share of the memory's that a kernel sees.
    l2_rate_factor: float
    memory_rate_share: float
    # Warps of an SM that keep its tensor cores busy.
    busy_warps: float
    # What all SMs store of D.
    store_bytes_per_us: float
    # Share of the time of fragments' loads that is left where a second set of registers takes the next ones.
    two_set_load_share: float
    # What staging sums and padded copies leave of the rate of WMMA: the share of a kernel's that does without.
    wmma_rate_share: float


# Where a device does not say what it has.
_CLOCK_MHZ, _MEMORY_GBPS, _TENSOR_TFLOPS = 1500, 500.0, 100.0
CONSTANTS = fitted_constants(__package__, MmaSyncConstants)


class BlockWork(NamedTuple):
    """What the time depends on. ``efficiency`` is the share of mma.sync's rate that the inner loop reaches."""

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    split: int
    resident: int
    efficiency: float
    repacked_bytes: int

    @classmethod
    def of(cls, cut: Tiling, resident: int, efficiency: float, repacked: int) -> BlockWork:
        """That of a tiling, of whose blocks an SM holds ``resident``."""
        tile, warps = (cut.tile_m, cut.tile_n, cut.tile_k), (cut.warps_m, cut.warps_n)
        return cls(*tile, *warps, cut.stages, cut.split, max(1, resident), efficiency, repacked)


def load_waits(gemm: Gemm, config: Config, device: Device, regime: Regime) -> LoadWaits:
    """What a block of a config of ``mma`` or ``wmma`` waits for: launches, and the copies of its steps."""
    c = CONSTANTS[regime]
    more = (repacked_bytes(gemm, config["load"]) > 0) + (config["split"] > 1)
    load_us = c.copy_latency_clocks / (device.clock_mhz or _CLOCK_MHZ)
    tiles = -(-gemm.k // config["tile_k"])
    return LoadWaits(c.launch_us + more * c.kernel_us, load_us, config["stages"] - 1, -(-tiles // config["split"]))


@lru_cache(maxsize=64)
def estimate(gemm: Gemm, device: Device, regime: Regime) -> Estimate:
    """The same one for every config of a problem."""
    return Estimate(gemm, device, regime)


class Estimate:
    """The analytic times of kernels of ``gemm`` on ``device``. What they share is counted once."""

    def __init__(self, gemm: Gemm, device: Device, regime: Regime) -> None:
        self.constants = c = CONSTANTS[regime]
        self.rows, self.columns, self.deep, self.batch = gemm.m_max, gemm.n, gemm.k, gemm.batch
        self.size, self.units = DTYPE_BYTES[gemm.dtype], device.units
        self.clock_hz = (device.clock_mhz or _CLOCK_MHZ) * 1e6
        rate_name = "f16_acc16" if gemm.acc == "f16" else gemm.dtype
        nominal = dict(device.peak_tflops).get(rate_name, _TENSOR_TFLOPS) * 1e12 / self.clock_hz / device.units
        self.rate = nominal * (c.sync_rate_share_sm_90a if device.arch == "sm_90a" else 1.0)
        bandwidth = (device.peak_gbps or _MEMORY_GBPS) * 1e9
        self.l2, self.memory = bandwidth * c.l2_rate_factor, bandwidth * c.memory_rate_share
        self.moved = gemm.nbytes / self.memory
        stored = self.rows * self.columns * self.batch * DTYPE_BYTES[gemm.out]
        self.moved = max(self.moved, 1e-6 * stored / c.store_bytes_per_us)

    def us(self, cut: BlockWork) -> float:
        """Microseconds of a call: the longest of tensor cores, shared memory, latency, L2 and memory, and what goes
        around."""
        c = self.constants
        blocks = -(-self.rows // cut.tile_m) * -(-self.columns // cut.tile_n) * self.batch * cut.split
        tiles = -(-self.deep // cut.tile_k)
        steps = -(-tiles // cut.split)
        rounds = -(-blocks // self.units)
        together = min(cut.resident, rounds)
        busy = min(1.0, together * cut.warps_m * cut.warps_n / c.busy_warps)
        products = 2.0 * cut.tile_m * cut.tile_n * cut.tile_k / (self.rate * cut.efficiency * busy)
        fragments = 2 * cut.tile_k * (cut.tile_m * cut.warps_n + cut.tile_n * cut.warps_m) / c.shared_bytes_per_clock
        step = max(products, fragments, c.copy_latency_clocks / (cut.stages - 1) / together) + c.step_clocks / together
        clocks = rounds * (steps * step + c.block_clocks / together)

        through_l2 = blocks * (cut.tile_m + cut.tile_n) * steps * cut.tile_k * self.size / self.l2
        extra = 0.0
        if cut.repacked_bytes:
            extra += c.kernel_us + 1e6 * 2 * cut.repacked_bytes / self.memory
        if cut.split > 1:
            partials = 4.0 * cut.split * self.rows * self.columns * self.batch
            extra += c.kernel_us + 1e6 * 2 * partials / self.l2
        return c.launch_us + extra + 1e6 * max(clocks / self.clock_hz, through_l2, self.moved)
