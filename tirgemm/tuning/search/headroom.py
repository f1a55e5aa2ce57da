"""Headroom of a problem: the share by which its default kernel is expected to be slower than the device allows.

An upper bound of what a search can gain, without measuring anything: what a gain is likely to be where nothing else is
known of a problem. The device's bound is its roofline, arithmetic or memory, and the launch of a kernel on top.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median

from tirgemm.device import Device
from tirgemm.families import supporting
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import KernelRecord

# Microseconds of a launch that no kernel is faster than.
LAUNCH_US = {"cpu": 1.0, "cuda": 2.0}
# Where a device does not say what it can do.
_GBPS, _TFLOPS_A_UNIT = 50.0, 0.25
# A default that is further away is slow for a reason that the estimate exaggerates.
MOST = 10.0


def bound_us(gemm: Gemm, device: Device) -> float:
    """Microseconds a call that the device needs at least."""
    rates = dict(device.peak_tflops)
    tflops = rates.get("f16_acc16" if gemm.acc == "f16" else gemm.dtype) or device.units * _TFLOPS_A_UNIT
    arithmetic, memory = gemm.flops / (tflops * 1e6), gemm.nbytes / ((device.peak_gbps or _GBPS) * 1e3)
    return max(arithmetic, memory) + LAUNCH_US[device.kind]


def headroom(gemm: Gemm, device: Device, regime: Regime, known: KernelRecord | None = None) -> float:
    """The share in speed that a search may gain: of the kernel that is ``known`` what its search still expected, else
    by its measured time; without one, by the estimate of the fastest family default. Raises Unsupported."""
    search = known.timings.search if known is not None else None
    if search is not None and search.expected_gain is not None and not math.isnan(search.expected_gain):
        return min(max(search.expected_gain, 0.0), MOST)
    timing = known.timings.of(regime) if known is not None else None
    if timing is not None:
        us = timing.median_us
    else:
        us = min(
            family.predict_us(gemm, config, device, regime)
            for family, config in ranked_defaults(supporting(gemm, device), gemm, device, regime)
        )
    return min(max(us / bound_us(gemm, device) - 1.0, 0.0), MOST)


def headrooms(
    problems: Sequence[tuple[Gemm, KernelRecord | None]], device: Device, regime: Regime, seconds: float
) -> list[float]:
    """``headroom`` of many problems within about ``seconds``; what is not reached by then counts as the median."""
    deadline = time.monotonic() + seconds
    known: list[float] = []
    for gemm, record in problems:
        if known and time.monotonic() > deadline:
            break
        known.append(headroom(gemm, device, regime, record))
    return known + [median(known)] * (len(problems) - len(known)) if known else []
