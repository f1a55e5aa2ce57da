"""Vectorisable polynomial activations for LLVM.

Polynomials in fp32, a few units in the last place of fp32: not fast math, every operation is IEEE's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_LOG2_E = 1 / math.log(2)
# ln 2 in two parts: the first is exact in few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# exp(r) = 1 + r + r^2 p(r) on |r| <= ln 2 / 2 (Cephes' expf, highest power first).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# At the upper end n is 128, and 2^128 has the bits of infinity. At the lower end one beside it is lost in fp32, and a
# product with it is no subnormal number, which cores are slow with.
_EXP_LEAST, _EXP_MOST = -60.0, 89.0
# erf(z) = 1 - t q(t) exp(-z^2), t = 1 / (1 + _ERF_T z), z >= 0: absolute error 1.5e-7
# (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26; highest power first).
_ERF_T = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def activation(tir: Any, hold: Callable[[Any], Any], act: str, x: Any) -> Any:
    """The activation of a float32 value or vector; ``hold`` keeps an intermediate."""
    f32 = _constants(tir, x)
    if act == "none":
        return x
    x = hold(x)
    if act == "relu":
        # Not a maximum: a NaN stays a NaN.
        return tir.Select(x < f32(0), f32(0), x)
    # A finite x over an infinite exp is zero, and -inf over it NaN, as in the definition.
    if act == "silu":
        return x / (f32(1) + _exp(tir, hold, f32(0) - x))
    if act == "gelu_tanh":
        # (1 + tanh y) / 2 = 1 / (1 + exp(-2 y)): nothing cancels.
        y = f32(-2 * math.sqrt(2 / math.pi)) * (x + f32(0.044715) * x * x * x)
        return x / (f32(1) + _exp(tir, hold, y))
    z = hold(tir.Select(x < f32(0), f32(0) - x, x) * f32(math.sqrt(0.5)))
    t = hold(f32(1) / (f32(1) + f32(_ERF_T) * z))
    tail = hold(_polynomial(f32, _ERF, t) * t * _exp(tir, hold, f32(0) - z * z))
    # erfc of |x| / sqrt 2; the normal distribution's other side by symmetry.
    return f32(0.5) * x * tir.Select(x < f32(0), tail, f32(2) - tail)


def one_nan(tir: Any, hold: Callable[[Any], Any], x: Any) -> Any:
    """A float32 value or vector with one NaN in place of each: TVM rounds to bf16 by an addition to the bits, which
    makes a zero of a NaN whose bits are nearly all ones."""
    x, lanes = hold(x), _lanes(x)

    def u32(value: int) -> Any:
        return tir.uint32(value) if lanes == 1 else tir.Broadcast(tir.uint32(value), lanes)

    bits = tir.reinterpret("uint32" if lanes == 1 else f"uint32x{lanes}", x)
    return tir.Select(tir.bitwise_and(bits, u32(0x7FFFFFFF)) > u32(0x7F800000), _constants(tir, x)(math.nan), x)


def _exp(tir: Any, hold: Callable[[Any], Any], x: Any) -> Any:
    """exp of float32: infinite from 127.5 ln 2 = 88.4 on, at its least exp(-60)."""
    f32 = _constants(tir, x)
    x = hold(x)
    # A NaN compares false with both ends and passes through.
    x = hold(tir.Select(x < f32(_EXP_LEAST), f32(_EXP_LEAST), tir.Select(x > f32(_EXP_MOST), f32(_EXP_MOST), x)))
    n = hold(tir.floor(x * f32(_LOG2_E) + f32(0.5)))
    r = hold(x - n * f32(_LN2_HIGH) - n * f32(_LN2_LOW))
    value = _polynomial(f32, _EXP, r) * r * r + r + f32(1)
    lanes = _lanes(x)
    suffix = f"x{lanes}" if lanes > 1 else ""
    power = tir.reinterpret(f"float32{suffix}", tir.shift_left(tir.cast(n, f"int32{suffix}") + 127, 23))
    return hold(value * power)


def _polynomial(f32: Callable[[float], Any], coefficients: tuple[float, ...], x: Any) -> Any:
    """Horner's scheme, highest power first."""
    value: Any = f32(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + f32(coefficient)
    return value


def _lanes(x: Any) -> int:
    return int(x.ty.dtype.lanes)


def _constants(tir: Any, x: Any) -> Callable[[float], Any]:
    """Writes fp32 constants as wide as ``x``."""
    lanes = _lanes(x)
    if lanes == 1:
        of_one: Callable[[float], Any] = tir.float32
        return of_one
    return lambda value: tir.Broadcast(tir.float32(value), lanes)
