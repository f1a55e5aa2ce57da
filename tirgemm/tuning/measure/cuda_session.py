"""Timing on a GPU.

Sustained: replays of CUDA graphs whose launches rotate over operands of at least four times the L2; a sample is one
replay over its launches, once the clock has settled. Isolated: a pair of events around one call, queued behind a
spinning kernel, the L2 evicted by reading before; a sample is one pair. Kernels are called through the launcher that
users call, under stream capture. Baselines that have candidates are tuned first, in the regime asked for
(``candidates``).
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tirgemm._extras import needed_by
from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.rounds import SampleBlock, StoppingRule, alternate, buffer_assignment, warm_up
from tirgemm.tuning.driver.cuda import Gpu, Memory, Module, call
from tirgemm.tuning.driver.nvml import Probe
from tirgemm.tuning.measure.baselines.cublaslt_baseline import CublasLtBaseline, CublasLtUnsplitBaseline
from tirgemm.tuning.measure.baselines.cutlass_baseline import CutlassBaseline
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.torch_baseline import TorchBaseline
from tirgemm.tuning.measure.baselines.torch_compiled_baseline import TorchCompiledBaseline
from tirgemm.tuning.measure.baselines.triton_baseline import TritonBaseline, TritonInvariantBaseline
from tirgemm.tuning.measure.baselines.tuned_baseline import Baseline, BaselineOption, Call, choose
from tirgemm.tuning.measure.conditions import now
from tirgemm.tuning.measure.gpu_operands import Operands, filled, sets_that_fit
from tirgemm.tuning.measure.hopeless import is_hopeless, timed
from tirgemm.tuning.measure.requests import Time
from tirgemm.tuning.measure.stream import gpu_stream
from tirgemm.tuning.measure.torch_import import imported_torch
from tirgemm.tuning.records import YARDSTICK, SampleSet
from tirgemm.tuning.verify.cuda import CudaBackend
from tirgemm.tuning.verify.cuda_chain import CudaChain

with needed_by("tirgemm.tuning.measure"):
    import tvm_ffi

_SOURCE = Path(__file__).with_name("timing.cu")
_EVICTION = 2
_REPLAY_US = 1000.0
_REPLAYS = 2
_ISOLATED_PER_BLOCK = 10
_SPIN_NS = 50_000
_LONGEST_SPIN_NS = 1_000_000
_WARM_CALLS = 3
_SCREEN_US = 300.0
_SCREEN_LAUNCHES = 100
_SCREEN_ISOLATED = 3
_FINAL = StoppingRule(8, 0.1)
# A call that takes so long is its own sample: what graphs and warm calls would add is nothing beside it.
_LONG_US = 100_000.0

Context = Callable[[], AbstractContextManager[Any]]
_BASELINES: dict[str, Callable[[Gemm, int, int], Baseline]] = {
    "torch.matmul": TorchBaseline,
    "torch.compile": TorchCompiledBaseline,
    "cublaslt_best": CublasLtBaseline,
    "cublaslt_unsplit": CublasLtUnsplitBaseline,
    "triton": TritonBaseline,
    "triton_invariant": TritonInvariantBaseline,
    "cutlass": CutlassBaseline,
}


@dataclass(frozen=True)
class _Contender:
    """Calls, one for each set of operands, and the context that puts them on our stream."""

    context: Context
    calls: list[Call]


class CudaSession:
    """One GPU, opened for verification (``backend``, ``make_chain``) and timing, with what verification keeps."""

    def __init__(self, device: Device, alive: Callable[[], None]) -> None:
        self.device = device
        self._alive = alive
        self._gpu = Gpu(device)
        self.backend = CudaBackend(self._gpu, alive)
        self.make_chain = partial(CudaChain, self._gpu, self.backend)
        self._module = Module(_SOURCE, device.arch)
        self._evicted: Memory | None = None
        self._chosen: dict[tuple[Gemm, str], dict[str, Any]] = {}
        alive()

    def time(self, kernel: Kernel, against: dict[str, Kernel], request: Time) -> SampleSet:
        """Samples of ``kernel`` and, interleaved, of its opponents and baselines."""
        options = request.options
        gemm = options.problem(kernel.gemm)
        absent: dict[str, str] = {}
        if request.baselines:
            with suppress(BaselineUnavailable):  # which those that need it say for themselves
                imported_torch(self._alive)
        chosen = self._chosen.setdefault((gemm, options.regime), {})
        makers: dict[str, Callable[[Operands], _Contender]] = {"": partial(self._kernel, kernel)}
        for name, other in against.items():
            makers[name] = partial(self._kernel, other)
        for name in request.baselines:
            try:
                baseline = _BASELINES[name](gemm, self._gpu.ordinal, int(self._gpu.stream))
            except BaselineUnavailable as reason:
                absent[name] = str(reason)
                continue
            makers[name] = partial(self._library, name, baseline, regime=options.regime, chosen=chosen)
        self._alive()
        owners = 1 if options.shared else len(makers)
        sets = sets_that_fit(gemm, owners, self._gpu, self.backend)
        buffers = []
        for i in range(owners):
            buffers.append(filled(gemm, sets, options.seed + i, self._gpu, self.backend))
            self._alive()
        order = [0] * len(makers) if options.shared else buffer_assignment(len(makers), options.swap)
        contenders: dict[str, _Contender] = {}
        for i, (name, make) in enumerate(makers.items()):
            try:
                contenders[name] = make(buffers[order[i]])
            except BaselineUnavailable as reason:
                absent[name] = str(reason)
            self._alive()
        probe = Probe(self.device.uuid)
        graphs: list[Any] = []
        launches: dict[str, int] = {}
        blocks: dict[str, SampleBlock] = {}
        try:
            for name, contender in contenders.items():
                blocks[name], count = self._block(contender, options.regime, probe, graphs)
                if count:
                    launches[name or "kernel"] = count
                self._alive()
            if options.regime == "sustained" and YARDSTICK not in blocks:
                warm_up(blocks.values(), options.warm_s, self._alive)
                options = replace(options, budget_s=max(0.0, options.budget_s - options.warm_s))
                probe.forget()
            samples = timed(blocks, options, self._alive)
        finally:
            for graph in graphs:
                call("cuGraphExecDestroy", graph)
        conditions: dict[str, Any] = (
            probe.summary()
            | {"at": now(), "clock": "cuda events"}
            | options.conditions(self.device, gemm, sets, buffers[0].memory.nbytes, self.device.limits.l2_bytes)
            | {name: choice for name, choice in chosen.items() if name in contenders}
        )
        if launches:
            conditions["launches_per_replay"] = launches
        if absent:
            conditions["absent"] = absent
        ours = tuple(samples.pop(""))
        return SampleSet(ours, options.reason, {name: tuple(s) for name, s in samples.items()}, conditions)

    def stream(self) -> SampleSet:
        """Samples of reading ``conditions["bytes"]`` bytes that no cache holds, and ``write_us`` of writing them."""
        return gpu_stream(self._gpu, lambda at, nbytes: self.backend.fill_normal(at, nbytes, "f16", 0), self._alive)

    def require_usable(self) -> None:
        """Raise CudaError where the context is broken."""
        call("cuCtxSynchronize")

    # -- contenders ----------------------------------------------------------------------------

    def _kernel(self, kernel: Kernel, operands: Operands) -> _Contender:
        raw = kernel.raw
        scalars = [1.0 for _ in kernel.gemm.scalars]
        device, stream = tvm_ffi.device("cuda", self._gpu.ordinal), int(self._gpu.stream)
        calls: list[Call] = [partial(raw, *(v.tensor for v in views.values()), *scalars) for views in operands.views]
        return _Contender(lambda: tvm_ffi.use_raw_stream(device, stream), calls)

    def _library(
        self, name: str, baseline: Baseline, operands: Operands, regime: Regime, chosen: dict[str, Any]
    ) -> _Contender:
        """A library's matmul, by the fastest of its candidates, which are tried once; ``chosen`` keeps it. Raises
        BaselineUnavailable."""
        count, index = len(operands.views), 0
        with baseline.context():
            candidates = baseline.candidates(operands.views)
            if name in chosen:
                index = chosen[name]["chosen"]
            elif candidates[0].label:
                turn = itertools.cycle(range(count))
                choice = choose(
                    len(candidates),
                    lambda i, best: self._screened(baseline.context, candidates[i], turn, regime, best),
                    lambda best: self._final(baseline.context, {i: candidates[i] for i in best}, count, regime),
                )
                chosen[name] = choice.to_json([candidate.label for candidate in candidates])
                index = choice.index
            return _contender(baseline.context, candidates[index], range(count))

    def _screened(
        self, context: Context, candidate: BaselineOption, turn: Iterator[int], regime: Regime, best: float
    ) -> float:
        """Microseconds of a candidate from few calls, with operands that were not used just before. Raises Refused."""
        candidate.call(next(turn))()
        self._gpu.synchronize()
        self._alive()
        if regime == "isolated":
            calls = _contender(context, candidate, itertools.islice(turn, _SCREEN_ISOLATED))
            return statistics.median(self._isolated(calls, None, self._host_ns(calls), _SCREEN_ISOLATED)())
        once = self._replayed(_contender(context, candidate, itertools.islice(turn, 1)))
        if is_hopeless(once, best):
            return once
        launches = min(_SCREEN_LAUNCHES, max(1, round(_SCREEN_US / once)))
        return self._replayed(_contender(context, candidate, itertools.islice(turn, launches)))

    def _replayed(self, contender: _Contender) -> float:
        """Microseconds a call of one replay over all calls."""
        count = len(contender.calls)
        graph = self._captured(contender, count)
        first, last = self._gpu.event(), self._gpu.event()
        try:
            self._spin(_SPIN_NS)
            self._gpu.record(first)
            call("cuGraphLaunch", graph, self._gpu.stream)
            self._gpu.record(last)
            return self._gpu.microseconds(first, last) / count
        finally:
            self._destroy([first, last])
            call("cuGraphExecDestroy", graph)

    def _final(
        self, context: Context, candidates: dict[int, BaselineOption], count: int, regime: Regime
    ) -> dict[int, float]:
        """Medians of the best candidates, timed as contenders are."""
        graphs: list[Any] = []
        try:
            blocks = {
                str(i): self._block(_contender(context, candidate, range(count)), regime, None, graphs)[0]
                for i, candidate in candidates.items()
            }
            samples = alternate(blocks, _FINAL, self._alive)
        finally:
            for graph in graphs:
                call("cuGraphExecDestroy", graph)
        return {int(i): statistics.median(taken) for i, taken in samples.items()}

    def _block(
        self, contender: _Contender, regime: Regime, probe: Probe | None, graphs: list[Any]
    ) -> tuple[SampleBlock, int]:
        """How a contender takes its turn, and in the sustained regime the launches of a replay of the graph added."""
        each_us, host_ns = self._warm(contender)
        if regime == "isolated":
            return self._isolated(contender, probe, host_ns), 0
        if each_us > _LONG_US:
            return self._one_by_one(contender, probe), 0
        sets = len(contender.calls)
        count = sets * max(1, round(_REPLAY_US / (sets * each_us)))
        graphs.append(self._captured(contender, count))
        return self._sustained(graphs[-1], count, probe), count

    def _warm(self, contender: _Contender) -> tuple[float, int]:
        """Microseconds of one call, roughly, after the first, which loads code and allocates; nanoseconds to queue
        it."""
        calls = contender.calls
        with contender.context():
            # Of the two only the second tells: the first loads code.
            if self._once(contender, 0) > _LONG_US and (long := self._once(contender, 1)) > _LONG_US:
                return long, 0
            host_ns = self._host_ns(contender)
            first, last = self._gpu.event(), self._gpu.event()
            self._spin(_WARM_CALLS * host_ns)
            self._gpu.record(first)
            for i in range(_WARM_CALLS):
                calls[i % len(calls)]()
            self._gpu.record(last)
        elapsed = self._gpu.microseconds(first, last)
        self._destroy([first, last])
        return max(0.5, elapsed / _WARM_CALLS), host_ns

    def _once(self, contender: _Contender, turn: int) -> float:
        """Microseconds of one call, the host's queueing included."""
        first, last = self._gpu.event(), self._gpu.event()
        with contender.context():
            self._gpu.record(first)
            contender.calls[turn % len(contender.calls)]()
            self._gpu.record(last)
        elapsed = self._gpu.microseconds(first, last)
        self._destroy([first, last])
        self._alive()
        return elapsed

    def _host_ns(self, contender: _Contender) -> int:
        """Nanoseconds that the host takes to queue a call whose code is loaded."""
        with contender.context():
            started = time.perf_counter_ns()
            contender.calls[0]()
            host_ns = time.perf_counter_ns() - started
        self._gpu.synchronize()
        return host_ns

    def _captured(self, contender: _Contender, count: int) -> Any:
        def work() -> None:
            for i in range(count):
                contender.calls[i % len(contender.calls)]()

        with contender.context():
            return self._gpu.capture(work)

    # -- blocks --------------------------------------------------------------------------------

    def _sustained(self, graph: Any, count: int, probe: Probe | None) -> SampleBlock:
        """Replays back to back. The first is not counted: the stream is idle before it."""

        def block() -> list[float]:
            events = [self._gpu.event() for _ in range(_REPLAYS + 1)]
            for event in events:
                call("cuGraphLaunch", graph, self._gpu.stream)
                self._gpu.record(event)
            if probe is not None:
                probe.sample()
            pairs = itertools.pairwise(events)
            samples = [self._gpu.microseconds(first, second) / count for first, second in pairs]
            self._destroy(events)
            return samples

        return block

    def _one_by_one(self, contender: _Contender, probe: Probe | None) -> SampleBlock:
        """Single calls of a kernel that takes long, in turns over the operands."""
        turn = 0

        def block() -> list[float]:
            nonlocal turn
            turn += 1
            elapsed = self._once(contender, turn)
            if probe is not None:
                probe.sample()
            return [elapsed]

        return block

    def _isolated(
        self, contender: _Contender, probe: Probe | None, host_ns: int, count: int = _ISOLATED_PER_BLOCK
    ) -> SampleBlock:
        turn = 0

        def block() -> list[float]:
            nonlocal turn
            pairs = [(self._gpu.event(), self._gpu.event()) for _ in range(count)]
            with contender.context():
                for first, second in pairs:
                    self._evict()
                    self._spin(host_ns)
                    self._gpu.record(first)
                    contender.calls[turn % len(contender.calls)]()
                    self._gpu.record(second)
                    turn += 1
            if probe is not None:
                probe.sample()
            samples = [self._gpu.microseconds(first, second) for first, second in pairs]
            self._destroy([event for pair in pairs for event in pair])
            return samples

        return block

    def _spin(self, host_ns: int) -> None:
        """Keep the GPU busy for longer than the host needs to queue what is timed."""
        duration = min(_LONGEST_SPIN_NS, max(_SPIN_NS, 3 * host_ns))
        self._module.launch(self._gpu.stream, "spin", 1, 1, ctypes.c_uint64(duration))

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


def _contender(context: Context, candidate: BaselineOption, sets: Iterable[int]) -> _Contender:
    with context():
        return _Contender(context, [candidate.call(i) for i in sets])
