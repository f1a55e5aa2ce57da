"""Memory for kernels that run on the CPU: outputs between guard bands, inputs that end before a protected page."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from tirgemm.expr import evaluate
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.launch import TensorArg

_GUARD = 256
POISON = 0xFF  # NaN in every dtype
_libc = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """Bytes between guard bands, all poison until written; the first byte is aligned to exactly ``align``."""

    def __init__(self, nbytes: int, align: int = 64) -> None:
        self.raw = np.full(nbytes + 2 * _GUARD + 3 * align, POISON, np.uint8)
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


class FencedMemory(GuardedMemory):
    """Bytes before a page that nobody may read: who reads beyond their end ends the process by SIGSEGV. Between their
    end and the page lie as few bytes as their alignment leaves, less than 2 * ``align``."""

    def __init__(self, nbytes: int, align: int = 64) -> None:
        room = -(-(nbytes + _GUARD + 2 * align) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._pages = mmap.mmap(-1, room + mmap.PAGESIZE)
        self.raw = np.frombuffer(self._pages, np.uint8, room)
        self.raw[:] = POISON
        fence = self.raw.ctypes.data + room
        if _libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "a page cannot be protected")
        # Aligned to align, but to no more.
        last = fence - nbytes
        self.offset = room - nbytes - (last - align) % (2 * align)
        self.nbytes = nbytes


def place(arg: TensorArg, m: int) -> tuple[GuardedMemory, np.ndarray]:
    """Memory for a tensor of a launch at one m, and the view of it with the tensor's shape and strides."""
    size = DTYPE_BYTES[arg.dtype]
    shape, strides = ([evaluate(d, m) for d in dims] for dims in (arg.shape, arg.strides))
    span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
    memory = (GuardedMemory if arg.output else FencedMemory)(span * size, arg.align)
    dtype: Any = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}[arg.dtype]
    flat = memory.data.view(dtype)
    return memory, np.lib.stride_tricks.as_strided(flat, shape, [stride * size for stride in strides])
