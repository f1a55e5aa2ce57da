"""The short dtypes in NumPy, as bits: bfloat16 included, which NumPy does not have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

BITS: dict[str, Any] = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32}
# Quiet NaNs with a payload that no arithmetic produces.
POISON = {"f16": 0x7EA5, "bf16": 0x7FE5, "f32": 0x7FE5A5A5}


def encode(values: npt.NDArray[np.float32], dtype: str) -> Bits:
    """The bits of ``values`` rounded to ``dtype``, to nearest even."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    words = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if dtype == "f32":
        return words
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def decode(bits: Bits, dtype: str) -> Floats:
    """The values of ``bits`` in fp64, exactly."""
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(np.float32).astype(np.float64)


def activate(x: Floats, act: str) -> Floats:
    """The activation in fp64."""
    if act == "relu":
        return np.maximum(x, 0.0)
    if act == "gelu":
        return 0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), np.float64))
    if act == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    if act == "silu":
        with np.errstate(over="ignore"):
            return x / (1.0 + np.exp(-x))
    return x


_erf = np.frompyfunc(math.erf, 1, 1)
