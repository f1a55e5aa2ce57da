"""Operands of a problem, its result in fp64 by NumPy, and how far a result may be from it.

This is what a user without the tuner checks a kernel with. The bound is that of ``tirgemm.tuning.verify.bound``, where it
is derived; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tirgemm import expr
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import DTYPE_NAMES, Gemm, Operand

Array: TypeAlias = "npt.NDArray[Any]"

UNIT_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
GROWTH = {"f32": 2.0, "f16": 1.0}
FLOOR = {"f32": 2.0**-126, "f16": 2.0**-25, "bf16": 2.0**-126}
EPILOGUE_ROUNDINGS = 4
MOST_ALPHA = 2.0
ACTIVATION_ROUNDINGS = {"none": 0, "relu": 0, "gelu": 64, "gelu_tanh": 64, "silu": 64}
LIPSCHITZ = {"none": 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}


def shape(gemm: Gemm, name: str, m: int) -> tuple[int, ...]:
    """The shape of an operand, bias or d at one m."""
    if name == "bias":
        return (gemm.n,)
    operand: Any = name
    return tuple(expr.evaluate(dim, m) for dim in gemm.shape(operand))


def strides(gemm: Gemm, name: str, m: int) -> tuple[int, ...]:
    """The strides of an operand, bias or d at one m, in elements."""
    if name == "bias":
        return (1,)
    operand: Any = name
    return tuple(expr.evaluate(dim, m) for dim in gemm.strides(operand))


def random_operands(gemm: Gemm, m: int, seed: int) -> dict[str, Array]:
    """Random normal inputs at one m, in fp32 but rounded to the dtype that the kernel takes."""
    rng = np.random.default_rng(seed)
    return {
        name: rounded(rng.standard_normal(shape(gemm, name, m), dtype=np.float32), dtype_of(gemm, name))
        for name in gemm.inputs
    }


def dtype_of(gemm: Gemm, name: str) -> str:
    return gemm.dtype if name in ("a", "b") else gemm.out


def rounded(values: Array, dtype: str) -> Array:
    """fp32 values rounded to the nearest of ``dtype``, ties to even."""
    values = np.asarray(values, np.float32)
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
        np.float32
    )


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
    if name == "bias":
        memory = _aligned(gemm.n, kind, gemm.align)
        memory[:] = values.astype(kind)
        return memory
    operand: Operand = name  # type: ignore[assignment]
    memory = _aligned(gemm.span(operand, m), kind, gemm.align)
    steps = [step * memory.itemsize for step in strides(gemm, name, m)]
    array = np.lib.stride_tricks.as_strided(memory, shape(gemm, name, m), steps)
    array[...] = values.astype(kind)
    return array


def _aligned(count: int, dtype: Any, align: int) -> Array:
    """Zeroed memory for ``count`` elements whose base address is a multiple of ``align`` bytes."""
    size = np.dtype(dtype).itemsize * count
    memory = np.zeros(size + align, np.uint8)
    start = -memory.ctypes.data % align
    return memory[start : start + size].view(dtype)


def coefficients(gemm: Gemm) -> tuple[float, float, float, float]:
    """The bound's coefficients: of T, of the value before the activation, of the result, and the floor."""
    u_acc, u_out = UNIT_ROUNDOFF[gemm.acc], UNIT_ROUNDOFF[gemm.out]
    summed, lipschitz = GROWTH[gemm.acc] * math.sqrt(gemm.k), LIPSCHITZ[gemm.act]
    floor = FLOOR[gemm.out] + MOST_ALPHA * lipschitz * summed * FLOOR[gemm.acc]
    return lipschitz * (summed + EPILOGUE_ROUNDINGS) * u_acc, ACTIVATION_ROUNDINGS[gemm.act] * u_acc, u_out, floor


def expected(gemm: Gemm, operands: dict[str, Array], alpha: float, beta: float) -> tuple[Array, Array]:
    """The result in fp64, and for each element how far a right kernel may be from it.

    With T = |alpha| |a_i| |b_j| + |beta C| + |bias| (Euclidean norms of the row and the column) and x the value before the
    activation: E = per_t T + per_x |x|, and the bound is E (1 + u_out) + u_out |d| + floor.
    """
    a, b = (operands[name].astype(np.float64) for name in ("a", "b"))
    a = np.swapaxes(a, -1, -2) if gemm.trans_a else a
    b = np.swapaxes(b, -1, -2) if gemm.trans_b else b
    scale = float(np.float32(alpha)) if gemm.alpha else 1.0
    before = scale * (a @ b)
    size = abs(scale) * np.linalg.norm(a, axis=-1)[..., :, None] * np.linalg.norm(b, axis=-2)[..., None, :]
    for name, factor in (("c", float(np.float32(beta))), ("bias", 1.0)):
        if name in gemm.inputs:
            added = factor * operands[name].astype(np.float64)
            before = before + added
            size = size + np.abs(added)
    per_t, per_x, per_y, floor = coefficients(gemm)
    result = _ACTIVATIONS[gemm.act](before)
    bound = (per_t * size + per_x * np.abs(before)) * (1 + per_y) + per_y * np.abs(result) + floor
    return result, bound


def error_over_bound(result: Array, reference: Array, bound: Array) -> float:
    """The largest error over its bound; infinity where anything is not finite. At most 1 is right."""
    if result.shape != reference.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        ratios = np.abs(result.astype(np.float64) - reference) / bound
    return float(np.max(ratios)) if bool(np.all(np.isfinite(ratios))) else math.inf


def _gelu(x: Array) -> Array:
    erf: Array = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0))
    return 0.5 * x * (1.0 + erf)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-x))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
