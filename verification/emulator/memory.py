"""Memory between guard bands for kernels that run on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from tirgemm.expr import evaluate
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.launch import TensorArg

_GUARD = 256
POISON = 0xFF  # NaN in every dtype


class GuardedMemory:
    """Bytes between guard bands, all poison until written; the first byte is aligned to exactly ``align``."""

    def __init__(self, nbytes: int, align: int = 64) -> None:
        self.raw = np.full(nbytes + 2 * _GUARD + 2 * align, POISON, np.uint8)
        start = self.raw.ctypes.data + _GUARD
        # Aligned to align, but to no more: a kernel that assumes more must fail.
        self.offset = _GUARD + (-start) % (2 * align) + align
        self.nbytes = nbytes

    @property
    def data(self) -> np.ndarray:
        return self.raw[self.offset : self.offset + self.nbytes]

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)

    def check_guards(self, name: str) -> None:
        before, after = self.raw[: self.offset], self.raw[self.offset + self.nbytes :]
        assert (before == POISON).all(), f"{name}: written before its beginning"
        assert (after == POISON).all(), f"{name}: written beyond its end"


def place(arg: TensorArg, m: int) -> tuple[GuardedMemory, np.ndarray]:
    """Memory for a tensor of a launch at one m, and the view of it with the tensor's shape and strides."""
    size = DTYPE_BYTES[arg.dtype]
    shape, strides = ([evaluate(d, m) for d in dims] for dims in (arg.shape, arg.strides))
    span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
    memory = GuardedMemory(span * size, arg.align)
    dtype: Any = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}[arg.dtype]
    flat = memory.data.view(dtype)
    return memory, np.lib.stride_tricks.as_strided(flat, shape, [stride * size for stride in strides])
