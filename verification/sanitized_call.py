"""Call packaged kernels once each: ``python -m verification.sanitized_call UUID KEY FILE ...``, under a sanitizer.

UUID is the GPU's. Prints ``== begin NAME`` and ``== end NAME RESULT`` around each call, by which the sanitizer's words
are told apart. Operands end where their allocations end, so that a read or write behind them is one outside of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from tirgemm.artifact import Kernel, Trust, load
from tirgemm.detect import gpu_of
from tirgemm.tuning.driver.cuda import Gpu, Memory
from tirgemm.tuning.driver.tensors import CUDA, View
from tirgemm.tuning.process.child_rpc import without_torch
from tirgemm.tuning.verify.host import GUARD_BYTES, HostBackend, HostOperand
from tirgemm.tuning.verify.plan import GemmTest, tensor_shape

BEGIN, END = "== begin", "== end"


def main(arguments: list[str]) -> int:
    return call_each(arguments, called)


def call_each(arguments: list[str], call: Callable[[Gpu, Kernel], str]) -> int:
    """Call each kernel; what ``call`` says of it stands behind its ``== end NAME``."""
    uuid, key, *files = arguments
    without_torch()
    gpu = Gpu(gpu_of(uuid))
    for file in files:
        name = Path(file).stem
        print(BEGIN, name, flush=True)
        print(END, name, call(gpu, load(file, trust=Trust.of(key))), flush=True)
    return 0


def called(gpu: Gpu, kernel: Kernel) -> str:
    """``right`` or what is wrong with the result of one call on the exact test's operands, at the largest m."""
    backend = HostBackend()
    problem = GemmTest(kernel.gemm, kernel.gemm.m_max, "exact", 1)
    case = backend.prepare(problem)
    case.operands["d"].poison()
    uploaded = {name: _Upload(gpu, operand) for name, operand in case.operands.items()}
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", gpu.ordinal), int(gpu.stream)):
        kernel.raw(*(upload.view.tensor for upload in uploaded.values()), *problem.arguments)
    gpu.synchronize()
    gpu.to_host(uploaded["d"].address, uploaded["d"].span)
    comparison = backend.compare(case, slice(0, problem.m), slice(0, kernel.gemm.n))
    return comparison.message or "right"


class _Upload:
    """The elements of a host operand on the GPU, aligned to its alignment and to no more."""

    def __init__(self, gpu: Gpu, operand: HostOperand) -> None:
        layout = operand.layout
        guard = GUARD_BYTES // operand.flat.itemsize
        self.span: Any = operand.flat[guard : guard + layout.span]
        self._memory = Memory(layout.align + self.span.nbytes)
        self.address = self._memory.address + layout.align
        gpu.to_device(self.address, np.ascontiguousarray(self.span))
        self.view = View(self.address, layout.dtype, *tensor_shape(layout), CUDA, gpu.ordinal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
