"""Timing on a GPU.

Sustained: replays of CUDA graphs whose launches rotate over operands of at least four times the L2; a sample is one
replay over its launches. Isolated: a pair of events around one call, queued behind a spinning kernel, the L2 evicted by
reading before; a sample is one pair. Kernels are called through the launcher that users call, under stream capture.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.errors import DoesNotFit
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure.conditions import now
from tirgemm.tuning.measure.driver import Gpu, Memory, Module, call
from tirgemm.tuning.measure.numpy_baseline import Absent
from tirgemm.tuning.measure.nvml import Probe
from tirgemm.tuning.measure.requests import Time
from tirgemm.tuning.measure.rounds import Block, Enough, alternate, assign
from tirgemm.tuning.measure.stream import gpu_stream
from tirgemm.tuning.measure.tensors import CUDA, View
from tirgemm.tuning.measure.torch_baseline import TorchBaseline
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.cuda import CudaBackend
from tirgemm.tuning.verify.numbers import BITS
from tirgemm.tuning.verify.plan import Layout, layout_of, tensor_shape

_SOURCE = Path(__file__).with_name("timing.cu")
_ROTATION = 4
_EVICTION = 2
_SETS = 8192
_ALIGN = 256
_REPLAY_US = 1000.0
_REPLAYS = 2
_ISOLATED_PER_BLOCK = 10
_SPIN_NS = 50_000
_WARM_CALLS = 3

Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class _Contender:
    """Calls, one for each set of operands, and the context that puts them on our stream."""

    context: Context
    calls: list[Callable[[], object]]


@dataclass(frozen=True)
class _Operands:
    memory: Memory
    views: list[dict[str, View]]


class CudaSession:
    """One GPU, with what verification keeps."""

    def __init__(self, device: Device, alive: Callable[[], None]) -> None:
        self.device = device
        self._alive = alive
        self._gpu = Gpu(device)
        self.backend = CudaBackend(self._gpu, alive)
        self._module = Module(_SOURCE, device.arch)
        self._evicted: Memory | None = None
        alive()

    def time(self, kernel: Kernel, against: dict[str, Kernel], request: Time) -> SampleSet:
        gemm = kernel.gemm
        absent: dict[str, str] = {}
        makers: dict[str, Callable[[_Operands], _Contender]] = {"": lambda o: self._kernel(kernel, o)}
        for name, other in against.items():
            makers[name] = lambda o, k=other: self._kernel(k, o)  # type: ignore[misc]
        for name in request.baselines:
            try:
                baseline = TorchBaseline(gemm, self._gpu.ordinal, int(self._gpu.stream))
            except Absent as reason:
                absent[name] = str(reason)
                continue
            makers[name] = lambda o, b=baseline: _Contender(b.context, [b.prepared(v) for v in o.views])  # type: ignore[misc]
        self._alive()
        owners = 1 if request.shared else len(makers)
        sets = self._sets(gemm, owners)
        buffers = [self._operands(gemm, sets, request.seed + i) for i in range(owners)]
        order = [0] * len(makers) if request.shared else assign(len(makers), request.swap)
        contenders = {name: make(buffers[order[i]]) for i, (name, make) in enumerate(makers.items())}
        self._alive()
        probe = Probe(self.device.uuid)
        graphs: list[Any] = []
        launches: dict[str, int] = {}
        blocks: dict[str, Block] = {}
        try:
            for name, contender in contenders.items():
                each_us = self._warm(contender)
                if request.regime == "sustained":
                    count = sets * max(1, round(_REPLAY_US / (sets * each_us)))
                    graphs.append(self._captured(contender, count))
                    launches[name or "kernel"] = count
                    blocks[name] = self._sustained(graphs[-1], count, probe)
                else:
                    blocks[name] = self._isolated(contender, probe)
                self._alive()
            samples = alternate(blocks, Enough(request.min_samples, request.budget_s), self._alive)
        finally:
            for graph in graphs:
                call("cuGraphExecDestroy", graph)
        conditions: dict[str, Any] = probe.summary() | {
            "at": now(), "regime": request.regime, "fingerprint": self.device.fingerprint, "device": self.device.key,
            "m": gemm.m_max, "operand_sets": sets, "rotated_bytes": buffers[0].memory.nbytes,
            "cache_bytes": self.device.limits.l2_bytes, "swapped": request.swap, "shared": request.shared,
            "clock": "cuda events",
        }  # fmt: skip
        if launches:
            conditions["launches_per_replay"] = launches
        if absent:
            conditions["absent"] = absent
        ours = tuple(samples.pop(""))
        return SampleSet(ours, request.reason, {name: tuple(s) for name, s in samples.items()}, conditions)

    def stream(self) -> SampleSet:
        return gpu_stream(
            self._gpu, lambda at, nbytes: self.backend.fill_normal(at, nbytes, "f16", 0), self._alive
        )  # fmt: skip

    def require_usable(self) -> None:
        """Raise CudaError where the context is broken."""
        call("cuCtxSynchronize")

    # -- contenders ----------------------------------------------------------------------------

    def _kernel(self, kernel: Kernel, operands: _Operands) -> _Contender:
        raw = kernel.raw
        scalars = [1.0 for _ in kernel.gemm.scalars]
        device, stream = tvm_ffi.device("cuda", self._gpu.ordinal), int(self._gpu.stream)
        calls: list[Callable[[], object]] = []
        for views in operands.views:
            tensors = [view.tensor for view in views.values()]
            calls.append(lambda t=tensors: raw(*t, *scalars))  # type: ignore[misc]
        return _Contender(lambda: tvm_ffi.use_raw_stream(device, stream), calls)

    def _warm(self, contender: _Contender) -> float:
        """Microseconds of one call, roughly, after the first, which loads code and allocates."""
        calls = contender.calls
        with contender.context():
            calls[0]()
            self._gpu.synchronize()
            self._alive()
            first, last = self._gpu.event(), self._gpu.event()
            self._gpu.record(first)
            for i in range(_WARM_CALLS):
                calls[i % len(calls)]()
            self._gpu.record(last)
        elapsed = self._gpu.microseconds(first, last)
        self._destroy([first, last])
        return max(0.5, elapsed / _WARM_CALLS)

    def _captured(self, contender: _Contender, count: int) -> Any:
        def work() -> None:
            for i in range(count):
                contender.calls[i % len(contender.calls)]()

        with contender.context():
            return self._gpu.capture(work)

    # -- blocks --------------------------------------------------------------------------------

    def _sustained(self, graph: Any, count: int, probe: Probe) -> Block:
        """Replays back to back. The first is not counted: the stream is idle before it."""

        def block() -> list[float]:
            events = [self._gpu.event() for _ in range(_REPLAYS + 1)]
            for event in events:
                call("cuGraphLaunch", graph, self._gpu.stream)
                self._gpu.record(event)
            probe.sample()
            pairs = itertools.pairwise(events)
            samples = [self._gpu.microseconds(first, second) / count for first, second in pairs]
            self._destroy(events)
            return samples

        return block

    def _isolated(self, contender: _Contender, probe: Probe) -> Block:
        turn = 0

        def block() -> list[float]:
            nonlocal turn
            pairs = [(self._gpu.event(), self._gpu.event()) for _ in range(_ISOLATED_PER_BLOCK)]
            with contender.context():
                for first, second in pairs:
                    self._evict()
                    self._module.launch(self._gpu.stream, "spin", 1, 1, ctypes.c_uint64(_SPIN_NS))
                    self._gpu.record(first)
                    contender.calls[turn % len(contender.calls)]()
                    self._gpu.record(second)
                    turn += 1
            probe.sample()
            samples = [self._gpu.microseconds(first, second) for first, second in pairs]
            self._destroy([event for pair in pairs for event in pair])
            return samples

        return block

    def _evict(self) -> None:
        if self._evicted is None:
            self._evicted = Memory(_EVICTION * max(1 << 20, self.device.limits.l2_bytes))
            call("cuMemsetD8", self._evicted.address, 1, self._evicted.nbytes)
            call("cuCtxSynchronize")
        words = ctypes.c_uint64(self._evicted.nbytes // 16)
        address = ctypes.c_void_p(self._evicted.address)
        self._module.launch(self._gpu.stream, "evict", 4 * self.device.units, 256, address, words, address)

    def _destroy(self, events: list[Any]) -> None:
        for event in events:
            call("cuEventDestroy", event)

    # -- operands ------------------------------------------------------------------------------

    def _sets(self, gemm: Gemm, contenders: int) -> int:
        one = sum(_padded(layout) for layout in _layouts(gemm))
        wanted = min(_SETS, max(2, -(-_ROTATION * self.device.limits.l2_bytes // one)))
        budget = self._gpu.free_bytes() * 3 // 4
        if budget < contenders * wanted * one:
            self.backend.forget()
            budget = self._gpu.free_bytes() * 3 // 4
        affordable = budget // (contenders * one)
        if not affordable:
            raise DoesNotFit(
                f"timing {gemm} beside {contenders - 1} others needs {contenders * one:,} bytes; "
                f"{self.device.name} has {budget:,} to spare: use fewer opponents"
            )
        return min(wanted, affordable)

    def _operands(self, gemm: Gemm, sets: int, seed: int) -> _Operands:
        """Fresh memory with ``sets`` sets of random normal operands, each apart."""
        layouts = _layouts(gemm)
        memory = Memory(sets * sum(_padded(layout) for layout in layouts) + max(_ALIGN, gemm.align))
        at = memory.address + -memory.address % max(_ALIGN, gemm.align)
        self.backend.fill_normal(at, memory.address + memory.nbytes - at, gemm.dtype, seed)
        views = []
        for i in range(sets):
            one: dict[str, View] = {}
            for layout in layouts:
                if layout.dtype != gemm.dtype and layout.name != "d":
                    self.backend.fill_normal(at, _size(layout), layout.dtype, seed + i)
                one[layout.name] = View(at, layout.dtype, *tensor_shape(layout), CUDA, self._gpu.ordinal)
                at += _padded(layout)
            views.append(one)
        self._gpu.synchronize()
        self._alive()
        return _Operands(memory, views)


def _layouts(gemm: Gemm) -> list[Layout]:
    return [layout_of(gemm, name, gemm.m_max) for name in (*gemm.inputs, "d")]


def _size(layout: Layout) -> int:
    return layout.span * int(np.dtype(BITS[layout.dtype]).itemsize)


def _padded(layout: Layout) -> int:
    align = max(_ALIGN, layout.align)
    return -(-_size(layout) // align) * align
