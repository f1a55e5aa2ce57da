"""Timing on the CPU.

Sustained: calls back to back over operands that rotate over at least four times the last-level cache; a sample is a
block of calls (about a millisecond) over their number. Isolated: before every call each hardware thread reads its part
of a buffer twice the size of the last-level cache, or an eighth of the memory where that is less (the conditions'
``evicted_bytes``); a sample is one call. Opponents take turns of about 20 ms, and a turn begins when no thread spins
any more: OpenBLAS's and OpenMP's do so for a while after a product, to be quick at the next.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.artifact import Kernel
from tirgemm.artifact.native import host_threads
from tirgemm.device import Device
from tirgemm.errors import DoesNotFit
from tirgemm.gemm import Gemm, Regime
from tirgemm.reference.numbers import BITS, Bits, encode
from tirgemm.rounds import SampleBlock, StoppingRule, alternate, buffer_assignment, settle, turn
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable, numpy_baseline
from tirgemm.tuning.measure.baselines.tuned_baseline import Call
from tirgemm.tuning.measure.conditions import host_conditions, timed_cache_bytes
from tirgemm.tuning.measure.host_torch_baseline import HostTorchBaseline
from tirgemm.tuning.measure.requests import Time
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.host import HostBackend
from tirgemm.tuning.verify.plan import operand_layouts, tensor_shape, timed_align, timed_start

_ROTATION = 4
_EVICTION = 2
_SETS = 1024
_MEMORY_SHARE = 8
_BLOCK_S = 1e-3
_RANDOM = 1 << 20
_PRIVATE_CACHE = 4 << 20
_STREAM_SAMPLES = 20


@dataclass(frozen=True)
class _Operands:
    """Fresh memory with sets of random normal operands of one gemm, each apart; the first begins at byte ``first``."""

    memory: npt.NDArray[np.uint8]
    first: int
    views: list[dict[str, View]]


_Prepare = Callable[[_Operands], Iterator[Call]]


class HostSession:
    """The CPU, opened for verification (``backend``; its launches do not overlap, so that it makes no chain) and
    timing, with what verification keeps."""

    def __init__(self, device: Device, alive: Callable[[], None]) -> None:
        self.device = device
        self.backend = HostBackend(alive)
        self.make_chain = None
        self._alive = alive
        self._cache = timed_cache_bytes()
        self._evict: _Evictor | None = None
        # Of baselines that choose among ways to compute a problem, what they chose.
        self._ways: dict[tuple[Gemm, str], dict[str, dict[str, Any]]] = {}
        # Of the last problem, for the next of its candidates: to fill memory takes as long as to time a kernel in it.
        self._kept: tuple[Gemm, int, list[_Operands]] | None = None

    def time(self, kernel: Kernel, against: dict[str, Kernel], request: Time) -> SampleSet:
        """Samples of ``kernel`` and, interleaved, of its opponents and baselines."""
        options = request.options
        gemm = options.problem(kernel.gemm)
        absent: dict[str, str] = {}
        contenders: dict[str, _Prepare] = {"": partial(_kernel_calls, kernel)}
        for name, other in against.items():
            contenders[name] = partial(_kernel_calls, other)
        for name in request.baselines:
            try:
                contenders[name] = self._baseline(name, gemm, options.regime)
            except BaselineUnavailable as reason:
                absent[name] = str(reason)
        owners = 1 if options.shared else len(contenders)
        sets = self._sets(gemm, owners)
        buffers = self._buffers(gemm, sets, owners, options.seed)
        order = [0] * len(contenders) if options.shared else buffer_assignment(len(contenders), options.swap)
        calls = {name: prepare(buffers[order[i]]) for i, (name, prepare) in enumerate(contenders.items())}
        before = host_conditions()
        settle()
        make = self._sustained if options.regime == "sustained" else self._isolated
        blocks = {name: make(it) for name, it in calls.items()}
        if len(blocks) > 1:
            blocks = {name: turn(calls[name], block) for name, block in blocks.items()}
        samples = alternate(blocks, StoppingRule(options.min_samples, options.budget_s), self._alive, seed=options.seed)
        conditions: dict[str, Any] = (
            before
            | {"clock": "perf_counter_ns"}
            | options.conditions(self.device, gemm, sets, buffers[0].memory.nbytes, self._cache)
            | {name: choice for name, choice in self._ways.get((gemm, options.regime), {}).items() if name in calls}
        )
        if options.regime == "isolated" and self._evict is not None:
            conditions["evicted_bytes"] = self._evict.nbytes
        if absent:
            conditions["absent"] = absent
        ours = tuple(samples.pop(""))
        return SampleSet(ours, options.reason, {name: tuple(s) for name, s in samples.items()}, conditions)

    def _buffers(self, gemm: Gemm, sets: int, owners: int, seed: int) -> list[_Operands]:
        """Operands for ``owners``: of the first, those that the last measurement of the problem had."""
        known, self._kept = self._kept, None  # before more is asked for, what is of no use is given back
        buffers = known[2] if known is not None and known[:2] == (gemm, sets) else []
        del known
        rng = np.random.default_rng([seed, 0x71E])
        while len(buffers) < owners:
            buffers.append(_operands(gemm, sets, rng))
            self._alive()
        self._kept = gemm, sets, buffers[:1]
        return buffers

    def _baseline(self, name: str, gemm: Gemm, regime: Regime) -> _Prepare:
        """How a baseline's calls are prepared. Raises BaselineUnavailable."""
        if name == "numpy_f32":
            function = numpy_baseline(gemm)
            return lambda operands: _array_calls(function, gemm, operands)
        baseline = HostTorchBaseline(gemm, host_threads(), self._alive)
        return lambda operands: self._torch_calls(name, baseline, gemm, regime, operands)

    def _torch_calls(
        self, name: str, baseline: HostTorchBaseline, gemm: Gemm, regime: Regime, operands: _Operands
    ) -> Iterator[Call]:
        """PyTorch's calls by the fastest of its ways, which are tried once a problem and regime."""
        known = self._ways.setdefault((gemm, regime), {})
        if name not in known:
            known[name] = baseline.choose(operands.views, self._sustained if regime == "sustained" else self._isolated)
        return itertools.cycle(baseline.chosen(known[name], operands.views))

    def stream(self) -> SampleSet:
        """Samples of reading ``conditions["bytes"]`` bytes of memory, which no cache holds where the memory is large
        enough for that."""
        read = self._evictor(_ROTATION)
        read()
        samples = []
        for _ in range(_STREAM_SAMPLES):
            started = time.perf_counter_ns()
            read()
            samples.append((time.perf_counter_ns() - started) / 1e3)
            self._alive()
        return SampleSet(tuple(samples), "selection", {}, host_conditions() | {"bytes": read.nbytes})

    def require_usable(self) -> None:
        """A CPU always is."""

    def _evictor(self, caches: int) -> _Evictor:
        """Of so many times the last-level cache: a virtual machine, shown all of its host's, may have less memory."""
        return _Evictor(min(caches * self._cache, self.device.memory_bytes // _MEMORY_SHARE))

    def _sets(self, gemm: Gemm, contenders: int) -> int:
        """Of operands, for each of ``contenders`` that own theirs. Raises DoesNotFit where one each takes more than
        half of the memory: the process would be killed for it."""
        one = _set_bytes(gemm)
        memory = self.device.memory_bytes
        if contenders > 1 and contenders * one > memory // 2:
            need = f"{contenders * one:,} bytes of operands; {self.device.name} spares half of {memory:,}"
            raise DoesNotFit(f"timing {gemm} beside {contenders - 1} others needs {need}: use fewer opponents")
        affordable = memory // (_MEMORY_SHARE * contenders * one)
        return max(1, min(max(2, -(-_ROTATION * self._cache // one)), _SETS, affordable))

    def _sustained(self, calls: Iterator[Call]) -> SampleBlock:
        """Blocks of as many calls as take about a millisecond; at least one."""
        count = _calls_per_block(calls)
        self._alive()

        def block() -> list[float]:
            batch = list(itertools.islice(calls, count))
            started = time.perf_counter_ns()
            for call in batch:
                call()
            return [(time.perf_counter_ns() - started) / 1e3 / count]

        return block

    def _isolated(self, calls: Iterator[Call]) -> SampleBlock:
        next(calls)()
        self._alive()
        if self._evict is None:
            self._evict = self._evictor(_EVICTION)
        evict = self._evict

        def block() -> list[float]:
            call = next(calls)
            evict()
            started = time.perf_counter_ns()
            call()
            return [(time.perf_counter_ns() - started) / 1e3]

        return block


def _calls_per_block(calls: Iterator[Call]) -> int:
    """From the fastest of warm calls: what other work delays would make a contender's samples shorter than those of
    another of its speed, and so less often hit. The first call loads code and starts threads, and is not counted."""
    next(calls)()
    count, best = 0, math.inf
    started = now = time.perf_counter()
    while count < 20 or (now - started < 10 * _BLOCK_S and count < 1000):
        before = now
        next(calls)()
        count, now = count + 1, time.perf_counter()
        best = min(best, now - before)
        if now - started > 50 * _BLOCK_S:
            break
    return max(1, round(_BLOCK_S / best))


def _kernel_calls(kernel: Kernel, operands: _Operands) -> Iterator[Call]:
    """Endless calls of the loaded kernel, each with the next set of operands."""
    raw = kernel.raw
    scalars = [1.0 for _ in kernel.gemm.scalars]
    ready = []
    for views in operands.views:
        tensors = [view.tensor for view in views.values()]
        ready.append(lambda t=tensors: raw(*t, *scalars))
    return itertools.cycle(ready)


def _array_calls(function: Callable[..., object], gemm: Gemm, operands: _Operands) -> Iterator[Call]:
    return itertools.cycle([lambda a=arrays: function(**a) for arrays in _arrays(gemm, operands)])


def _set_bytes(gemm: Gemm) -> int:
    return sum(layout.padded_bytes for layout in operand_layouts(gemm))


def _operands(gemm: Gemm, sets: int, rng: np.random.Generator) -> _Operands:
    """Fresh memory, filled from a million random normal numbers, each part from a random offset on."""
    layouts = operand_layouts(gemm)
    memory = np.empty(sets * _set_bytes(gemm) + 2 * timed_align(gemm.align), np.uint8)
    first = timed_start(gemm, memory.ctypes.data) - memory.ctypes.data
    normal = rng.standard_normal(_RANDOM, dtype=np.float32)
    pools = {layout.dtype: np.tile(encode(normal, layout.dtype), 2) for layout in layouts if layout.name != "d"}
    _scatter(memory[first : first + sets * _set_bytes(gemm)].view(BITS[gemm.dtype]), pools[gemm.dtype], rng)
    at, views = first, []
    for _ in range(sets):
        one: dict[str, View] = {}
        for layout in layouts:
            if layout.dtype != gemm.dtype and layout.name != "d":
                flat: Bits = memory[at : at + layout.nbytes].view(BITS[layout.dtype])
                _scatter(flat, pools[layout.dtype], rng)
            one[layout.name] = View(memory.ctypes.data + at, layout.dtype, *tensor_shape(layout))
            at += layout.padded_bytes
        views.append(one)
    return _Operands(memory, first, views)


def _arrays(gemm: Gemm, operands: _Operands) -> list[dict[str, Bits]]:
    """The same operands as NumPy arrays of bits."""
    at, arrays = operands.first, []
    for _ in operands.views:
        one: dict[str, Bits] = {}
        for layout in operand_layouts(gemm):
            flat: Bits = operands.memory[at : at + layout.nbytes].view(BITS[layout.dtype])
            shape, strides = tensor_shape(layout)
            one[layout.name] = np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides])
            at += layout.padded_bytes
        arrays.append(one)
    return arrays


def _scatter(flat: Bits, pool: Bits, rng: np.random.Generator) -> None:
    for at in range(0, flat.size, _RANDOM):
        offset = int(rng.integers(_RANDOM))
        piece = flat[at : at + _RANDOM]
        piece[:] = pool[offset : offset + piece.size]


class _Evictor:
    """Reads a buffer with one thread pinned to each usable hardware thread: shared and private caches both."""

    def __init__(self, nbytes: int) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self._buffer = np.ones(max(nbytes, len(cpus) * _PRIVATE_CACHE) // 8, np.int64)
        self._parts = np.array_split(self._buffer, len(cpus))
        self._cpus = cpus
        self._pinned = threading.local()
        self._threads = [ThreadPoolExecutor(1) for _ in cpus]

    @property
    def nbytes(self) -> int:
        return int(self._buffer.nbytes)

    def __call__(self) -> None:
        parts = zip(self._threads, self._cpus, self._parts, strict=True)
        for future in [thread.submit(self._read, cpu, part) for thread, cpu, part in parts]:
            future.result()

    def _read(self, cpu: int, part: npt.NDArray[Any]) -> None:
        if not hasattr(self._pinned, "cpu"):
            os.sched_setaffinity(0, {cpu})
            self._pinned.cpu = cpu
        part.sum()
