"""Chains of calls on a GPU: buffers, calls queued behind work that lasts longer than queueing them, and comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tirgemm.gemm import DTYPE_BYTES
from tirgemm.reference.numbers import BITS, decode
from tirgemm.tuning.driver.cuda import Gpu, Memory
from tirgemm.tuning.driver.tensors import CUDA, View
from tirgemm.tuning.verify.chain import STEPS, divisor
from tirgemm.tuning.verify.cuda import CudaBackend
from tirgemm.tuning.verify.plan import GemmTest, layout_of, tensor_shape

# To fill them takes longer than to queue a chain's calls, of some microseconds each.
_HELD_BYTES = 1 << 28
_SAMPLE = 4096


class _Buffers:
    """Two buffers, either large enough for A and for D, and the views of calls from each into the other."""

    def __init__(self, gpu: Gpu, problem: GemmTest) -> None:
        gemm = problem.gemm
        layouts = {name: layout_of(gemm, name, problem.m) for name in ("a", "d")}
        nbytes = max(layout.nbytes for layout in layouts.values())
        self.memories = Memory(nbytes), Memory(nbytes)
        self.steps = tuple(
            tuple(
                View(memory.address, layouts[name].dtype, *tensor_shape(layouts[name]), CUDA, gpu.ordinal)
                for name, memory in (("a", source), ("d", target))
            )
            for source, target in (self.memories, self.memories[::-1])
        )


class CudaChain:
    """A ``Chain`` on a GPU. ``backend`` fills and compares; the cases that it keeps make room."""

    def __init__(self, gpu: Gpu, backend: CudaBackend, problem: GemmTest) -> None:
        backend.forget()
        self._gpu, self._backend, self._problem = gpu, backend, problem
        self._buffers = {awaited: _Buffers(gpu, problem) for awaited in (True, False)}
        self._held = Memory(min(_HELD_BYTES, gpu.free_bytes() // 4))
        gemm = problem.gemm
        self._others: dict[str, tuple[Memory, View]] = {}
        for name in gemm.inputs[1:]:
            layout = layout_of(gemm, name, problem.m)
            memory = Memory(layout.nbytes)
            view = View(memory.address, layout.dtype, *tensor_shape(layout), CUDA, gpu.ordinal)
            self._others[name] = memory, view
            scale = divisor(gemm) if name == "b" else 1
            backend.fill_normal(memory.address, memory.nbytes, layout.dtype, problem.seed + len(self._others), scale)

    def run(self, function: Callable[..., object], *, awaited: bool) -> None:
        buffers, dtype = self._buffers[awaited], self._problem.gemm.dtype
        for number, memory in enumerate(buffers.memories):
            self._backend.fill_normal(memory.address, memory.nbytes, dtype, self._problem.seed + 8 + number)
        if not awaited:
            self._backend.fill_normal(self._held.address, self._held.nbytes, "f16", 0)
        others = [view.tensor for _, view in self._others.values()]
        with self._backend.on_stream():
            for step in range(STEPS):
                a, d = buffers.steps[step % 2]
                function(a.tensor, *others, d.tensor, *self._problem.arguments)
                if awaited:
                    self._gpu.synchronize()
        self._gpu.synchronize()

    def differing(self) -> int:
        pairs = zip(self._buffers[True].memories, self._buffers[False].memories, strict=True)
        return sum(self._backend.differing(one, other) for one, other in pairs)

    def sample(self) -> npt.NDArray[np.float64]:
        dtype = self._problem.gemm.out
        written = self._buffers[True].memories[STEPS % 2]
        bits = np.empty(min(_SAMPLE, written.nbytes // DTYPE_BYTES[dtype]), BITS[dtype])
        self._gpu.to_host(written.address, bits)
        return decode(bits, dtype)
