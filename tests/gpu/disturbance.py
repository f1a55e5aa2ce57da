"""A competing kernel beside the one under test, and the outputs that it writes while disturbed."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm.reference.numbers import BITS
from tirgemm.tuning.driver.cuda import Gpu, Memory, Module, call
from tirgemm.tuning.verify.cuda import CudaBackend, CudaCase

_SOURCE = Path(__file__).with_name("disturb.cu")
_BYTES = 256 << 20
_THREADS = (32, 256, 1024)
_LONGEST_NS = (2_000, 20_000, 100_000)


class Competitor:
    """Other work on a stream of its own: a varying number of blocks for varying times, with and without memory
    traffic."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._stream = call("cuStreamCreate", 1)  # non-blocking
        self._module = Module(_SOURCE, gpu.device.arch)
        self._memory = Memory(_BYTES)

    def start(self, seed: int) -> None:
        """Queue one kernel and return at once. From one block, which leaves all SMs but one, to three for every SM."""
        rng = random.Random(seed)
        blocks = rng.randint(1, 3 * self._gpu.device.units)
        words = rng.choice((0, _BYTES // 8))
        arguments = (
            ctypes.c_void_p(self._memory.address),
            ctypes.c_uint64(words),
            ctypes.c_uint64(rng.choice(_LONGEST_NS)),
            ctypes.c_uint64(seed),
        )
        self._module.launch(self._stream, "hog", blocks, rng.choice(_THREADS), *arguments)

    def stop(self) -> None:
        """Wait for what is queued."""
        call("cuStreamSynchronize", self._stream)


def outputs(
    gpu: Gpu,
    backend: CudaBackend,
    case: CudaCase,
    function: Callable[..., object],
    competitor: Competitor | None,
    count: int,
) -> Iterator[Any]:
    """D's memory, guard bands included, after each of ``count`` launches, each beside the competitor where one is
    given."""
    for number in range(count):
        if competitor is not None:
            competitor.start(number)
        backend.run(case, function)
        d = case.operands["d"]
        bits = np.empty(d.argument.elements, BITS[d.layout.dtype])
        gpu.to_host(d.argument.base, bits)
        yield bits
    if competitor is not None:
        competitor.stop()


def differing(results: Iterator[Any], first: Any) -> int:
    """How many of the outputs differ from ``first`` in any bit."""
    return sum(not np.array_equal(bits, first) for bits in results)
