"""The bits behind tensors that kernels are called with, as NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tirgemm.reference.numbers import BITS


def bits_of(tensor: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The bits of a tensor, whatever its strides and dtype, without a copy."""
    shape, strides = tuple(tensor.shape), tuple(tensor.strides)
    item = np.dtype(BITS[dtype]).itemsize
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = (ctypes.c_uint8 * (span * item)).from_address(tensor.data_ptr())
    flat = np.frombuffer(memory, BITS[dtype])
    return np.lib.stride_tricks.as_strided(flat, shape, [s * item for s in strides])
