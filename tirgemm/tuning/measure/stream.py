"""The bandwidths of a GPU's reading alone and writing alone: of memory that no cache holds, once a sample."""

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
# Blocks an SM: which of them is the fastest differs between GPUs.
_BLOCKS = (1, 2, 4)


def gpu_stream(gpu: Gpu, fill: Callable[[int, int], None], alive: Callable[[], None]) -> SampleSet:
    """Microseconds of reading ``GPU_BYTES``, launches back to back, with the fastest of a few grids; the conditions
    have those of writing as much.

    ``fill(address, nbytes)`` queues the filling with random data: zeros are read with less power.
    """
    module, memory = Module(_SOURCE, gpu.device.arch), Memory(GPU_BYTES)
    fill(memory.address, memory.nbytes)
    gpu.synchronize()
    alive()
    words, address = ctypes.c_uint64(GPU_BYTES // 16), ctypes.c_void_p(memory.address)

    def fastest(kernel: str, *arguments: object) -> tuple[int, list[float]]:
        times: dict[int, list[float]] = {}
        for blocks in _BLOCKS:
            events = [gpu.event() for _ in range(SAMPLES + 2)]
            for event in events:
                module.launch(gpu.stream, kernel, blocks * gpu.device.units, _THREADS, *arguments)
                gpu.record(event)
            samples = [gpu.microseconds(first, second) for first, second in itertools.pairwise(events)]
            for event in events:
                call("cuEventDestroy", event)
            times[blocks] = samples[1:]
            alive()
        best = min(times, key=lambda blocks: statistics.median(times[blocks]))
        return best, times[best]

    best, reading = fastest("read_stream", address, words, address)
    best_writing, writing = fastest("write_stream", address, words, ctypes.c_uint32(1))
    conditions = {"bytes": GPU_BYTES, "at": now(), "blocks_per_sm": best, "threads": _THREADS}
    conditions |= {"write_us": writing, "write_blocks_per_sm": best_writing}
    return SampleSet(tuple(reading), "selection", {}, conditions)
