"""The CPU's baseline ``numpy_f32``: operands cast to fp32, ``np.matmul``, the result cast back; the casts count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tirgemm.gemm import Gemm

# alpha and beta of every timed call; a variable, so that the products are computed as a user's would be.
_ONE = np.float32(1.0)


class BaselineUnavailable(Exception):
    """A baseline cannot run this problem; the text says why."""


def numpy_baseline(gemm: Gemm) -> Callable[..., object]:
    """A function of the operands' bits by name that writes D. Raises BaselineUnavailable."""
    if "bf16" in (gemm.dtype, gemm.out):
        raise BaselineUnavailable("NumPy has no bfloat16")
    if gemm.act == "gelu":
        raise BaselineUnavailable("NumPy has no erf")
    kinds: dict[str, Any] = {"f16": np.float16, "f32": np.float32}
    source, target = kinds[gemm.dtype], kinds[gemm.out]
    trans_a, trans_b, scaled, act = gemm.trans_a, gemm.trans_b, gemm.alpha, _ACTIVATIONS[gemm.act]

    def run(a: Any, b: Any, d: Any, c: Any = None, bias: Any = None) -> None:
        left = a.view(source).astype(np.float32, copy=False)
        right = b.view(source).astype(np.float32, copy=False)
        x = np.matmul(left.swapaxes(-1, -2) if trans_a else left, right.swapaxes(-1, -2) if trans_b else right)
        if scaled:
            x *= _ONE
        if c is not None:
            x += _ONE * c.view(target)
        if bias is not None:
            x += bias.view(target)
        d.view(target)[...] = act(x)

    return run


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}
