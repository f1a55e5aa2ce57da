"""The bandwidth of a GPU's reading alone: a stream of memory that no cache holds, read once a sample."""

from __future__ import annotations

import ctypes
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

from tirgemm.tuning.driver.cuda import Gpu, Memory, Module, call
from tirgemm.tuning.measure.conditions import now
from tirgemm.tuning.records import SampleSet

GPU_BYTES = 1 << 30
SAMPLES = 20
_SOURCE = Path(__file__).with_name("stream.cu")
_THREADS = 512
# Blocks an SM: which of them reads fastest differs between GPUs.
_BLOCKS = (1, 2, 4)


def gpu_stream(gpu: Gpu, fill: Callable[[int, int], None], alive: Callable[[], None]) -> SampleSet:
    """Microseconds of reading ``GPU_BYTES``, launches back to back, with the fastest of a few grids.

    ``fill(address, nbytes)`` queues the filling with random data: zeros are read with less power.
    """
    module, memory = Module(_SOURCE, gpu.device.arch), Memory(GPU_BYTES)
    fill(memory.address, memory.nbytes)
    gpu.synchronize()
    alive()
    times: dict[int, list[float]] = {}
    for blocks in _BLOCKS:
        events = [gpu.event() for _ in range(SAMPLES + 2)]
        for event in events:
            words, address = ctypes.c_uint64(GPU_BYTES // 16), ctypes.c_void_p(memory.address)
            module.launch(gpu.stream, "read_stream", blocks * gpu.device.units, _THREADS, address, words, address)
            gpu.record(event)
        samples = [gpu.microseconds(first, second) for first, second in itertools.pairwise(events)]
        for event in events:
            call("cuEventDestroy", event)
        times[blocks] = samples[1:]
        alive()
    best = min(times, key=lambda blocks: statistics.median(times[blocks]))
    conditions = {"bytes": GPU_BYTES, "at": now(), "blocks_per_sm": best, "threads": _THREADS}
    return SampleSet(tuple(times[best]), "selection", {}, conditions)
