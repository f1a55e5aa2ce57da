"""Operands of a problem in host memory or in ``.npy`` files, and how far a result is from the expected one.

This is what a user without the tuner checks a kernel with.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tirgemm import expr
from tirgemm.artifact.regular_file import open_regular
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import DTYPE_NAMES, Gemm
from tirgemm.launch import TensorArg, tensor_args
from tirgemm.reference.numbers import decode, encode

Array: TypeAlias = "npt.NDArray[Any]"


def shape(gemm: Gemm, name: str, m: int) -> tuple[int, ...]:
    """The shape of an operand, bias or d at one m."""
    return tuple(expr.evaluate(dim, m) for dim in _tensor(gemm, name).shape)


def strides(gemm: Gemm, name: str, m: int) -> tuple[int, ...]:
    """The strides of an operand, bias or d at one m, in elements."""
    return tuple(expr.evaluate(dim, m) for dim in _tensor(gemm, name).strides)


def dtype_of(gemm: Gemm, name: str) -> str:
    return _tensor(gemm, name).dtype


def _tensor(gemm: Gemm, name: str) -> TensorArg:
    return next(tensor for tensor in tensor_args(gemm) if tensor.name == name)


def random_operands(gemm: Gemm, m: int, seed: int) -> dict[str, Array]:
    """Random normal inputs at one m, in fp32 but rounded to the dtype that the kernel takes."""
    rng = np.random.default_rng(seed)
    return {
        name: rounded(rng.standard_normal(shape(gemm, name, m), dtype=np.float32), dtype_of(gemm, name))
        for name in gemm.inputs
    }


def rounded(values: Array, dtype: str) -> Array:
    """fp32 values rounded to the nearest of ``dtype``, ties to even."""
    return decode(encode(np.asarray(values, np.float32), dtype), dtype).astype(np.float32)


def read_array(path: Path) -> Any:
    """The array of numbers in a ``.npy`` file. Raises InvalidRequest where it is none, OSError where it cannot be
    read."""
    try:
        with open_regular(path) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, TypeError, OverflowError, MemoryError) as error:  # of a damaged header
        raise InvalidRequest(f"{path} is not a .npy array of numbers, or damaged; numpy.save writes them") from error


def stored(values: Array, gemm: Gemm, name: str, m: int) -> Array:
    """The values as the kernel wants them in host memory: its dtype, its leading dimension and batch stride."""
    dtype = dtype_of(gemm, name)
    if dtype == "bf16":
        try:
            from ml_dtypes import bfloat16
        except ImportError as error:
            raise InvalidRequest("bf16 arrays in NumPy need the package ml_dtypes: pip install ml_dtypes") from error
        kind: Any = bfloat16
    else:
        kind = np.dtype(DTYPE_NAMES[dtype])
    extents, steps = shape(gemm, name, m), strides(gemm, name, m)
    span = 1 + sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True))
    memory = _aligned(span, kind, gemm.align)
    array = np.lib.stride_tricks.as_strided(memory, extents, [step * memory.itemsize for step in steps])
    array[...] = values.astype(kind)
    return array


def _aligned(count: int, dtype: Any, align: int) -> Array:
    """Zeroed memory for ``count`` elements whose base address is a multiple of ``align`` bytes."""
    size = np.dtype(dtype).itemsize * count
    memory = np.zeros(size + align, np.uint8)
    start = -memory.ctypes.data % align
    return memory[start : start + size].view(dtype)


def error_over_bound(result: Array, reference: Array, bound: Array) -> float:
    """The largest error over its bound; infinity where anything is not finite. At most 1 is right."""
    if result.shape != reference.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        ratios = np.abs(result.astype(np.float64) - reference) / bound
    return float(np.max(ratios)) if bool(np.all(np.isfinite(ratios))) else math.inf
