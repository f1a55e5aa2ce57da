"""The analytic time of a blocked tensor-core kernel, to rank configs without running them. Pure; microseconds of Python."""

from __future__ import annotations

from typing import NamedTuple

from tirgemm.device import Device
from tirgemm.gemm import DTYPE_BYTES, Gemm

_LAUNCH_US = 2.5
_COLD_US = 3.5
# A pass over memory between kernels of a call: the gap, beside its bytes.
_KERNEL_US = 2.0
# Share of the nominal tensor-core rate that long work of mma.sync reaches, which only wgmma does on sm_90a; fitted, like the
# constants below, to 40 configs of 4096^3 and 8192^3 on an H200, whose power caps its clock meanwhile.
_SYNC_SHARE = {"sm_90a": 0.447}
# Bytes of shared memory that an SM reads in a clock.
_SHARED_BYTES_A_CLOCK = 128
# Clocks from a copy's issue to its arrival; of a step's barrier and branch; of a block's start and end.
_COPY_LATENCY = 900.0
_STEP_CLOCKS = 190.0
_BLOCK_CLOCKS = 500.0
# The L2's bandwidth beside the memory's, and the share of the memory's that a kernel sees.
_L2_FACTOR = 1.15
_MEMORY_SHARE = 0.85
# Warps of an SM that keep its tensor cores busy.
_BUSY_WARPS = 8.0


class Cut(NamedTuple):
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


class Estimate:
    """The analytic times of kernels of ``gemm`` on ``device``. What they share is counted once."""

    def __init__(self, gemm: Gemm, device: Device, regime: str) -> None:
        self.rows, self.columns, self.deep, self.batch = gemm.m_max, gemm.n, gemm.k, gemm.batch
        self.size, self.units = DTYPE_BYTES[gemm.dtype], device.units
        self.clock_hz = (device.clock_mhz or 1500) * 1e6
        rate_name = "f16_acc16" if gemm.acc == "f16" else gemm.dtype
        nominal = dict(device.peak_tflops).get(rate_name, 100.0) * 1e12 / self.clock_hz / device.units
        self.rate = nominal * _SYNC_SHARE.get(device.arch, 1.0)
        bandwidth = (device.peak_gbps or 500.0) * 1e9
        self.l2, self.memory = bandwidth * _L2_FACTOR, bandwidth * _MEMORY_SHARE
        self.moved = gemm.nbytes / self.memory
        self.around = _LAUNCH_US + (_COLD_US if regime == "isolated" else 0.0)

    def us(self, cut: Cut) -> float:
        """Microseconds of a call: the longest of tensor cores, shared memory, latency, L2 and memory, and what goes around."""
        blocks = -(-self.rows // cut.tile_m) * -(-self.columns // cut.tile_n) * self.batch * cut.split
        tiles = -(-self.deep // cut.tile_k)
        steps = -(-tiles // cut.split)
        rounds = -(-blocks // self.units)
        together = min(cut.resident, rounds)
        busy = min(1.0, together * cut.warps_m * cut.warps_n / _BUSY_WARPS)
        products = 2.0 * cut.tile_m * cut.tile_n * cut.tile_k / (self.rate * cut.efficiency * busy)
        fragments = 2 * cut.tile_k * (cut.tile_m * cut.warps_n + cut.tile_n * cut.warps_m) / _SHARED_BYTES_A_CLOCK
        step = max(products, fragments, _COPY_LATENCY / (cut.stages - 1) / together) + _STEP_CLOCKS / together
        clocks = rounds * (steps * step + _BLOCK_CLOCKS / together)

        through_l2 = blocks * (cut.tile_m + cut.tile_n) * steps * cut.tile_k * self.size / self.l2
        extra = 0.0
        if cut.repacked_bytes:
            extra += _KERNEL_US + 1e6 * 2 * cut.repacked_bytes / self.memory
        if cut.split > 1:
            partials = 4.0 * cut.split * self.rows * self.columns * self.batch
            extra += _KERNEL_US + 1e6 * 2 * partials / self.l2
        return self.around + extra + 1e6 * max(clocks / self.clock_hz, through_l2, self.moved)
