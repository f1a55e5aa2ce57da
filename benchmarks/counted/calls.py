"""Call packaged kernels once each: ``python -m benchmarks.counted.calls UUID KEY FILE ...``, under the profiler.

UUID is the GPU's. Prints ``== begin NAME`` and ``== end NAME`` around each call. Operands are random and start where
the driver puts them, on lines of memory. No other kernel is launched: launches belong to calls by their order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm_ffi

from tirgemm.artifact import Kernel
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.reference.numbers import encode
from tirgemm.tuning.driver.cuda import Gpu, Memory
from tirgemm.tuning.driver.tensors import CUDA, View
from tirgemm.tuning.verify.plan import GemmTest, layout_of, tensor_shape
from verification.sanitized_call import call_each


def main(arguments: list[str]) -> int:
    return call_each(arguments, call)


def call(gpu: Gpu, kernel: Kernel) -> str:
    """One call of ``kernel`` at its largest m, of which nothing is said."""
    gemm = kernel.gemm
    problem = GemmTest(gemm, gemm.m_max, "normal", 1)
    numbers = np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32)
    operands = []
    for name in (*gemm.inputs, "d"):
        layout = layout_of(gemm, name, gemm.m_max)
        memory = Memory(layout.span * DTYPE_BYTES[layout.dtype])
        values: Any = np.resize(numbers, layout.span)
        gpu.to_device(memory.address, np.ascontiguousarray(encode(values, layout.dtype)))
        operands.append((memory, View(memory.address, layout.dtype, *tensor_shape(layout), CUDA, gpu.ordinal)))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", gpu.ordinal), int(gpu.stream)):
        kernel.raw(*(view.tensor for _, view in operands), *problem.arguments)
    gpu.synchronize()
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
