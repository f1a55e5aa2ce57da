"""Error bounds of an element against the fp64 reference.

With ``u`` the unit roundoff, ``T = |alpha| |a_i| |b_j| + |beta C_ij| + |bias_j|`` (Euclidean norms of A's row and B's
column), x the exact value before the activation and ``y = act(x)``::

    E     = L (c sqrt(k) + 4) u_acc T + 2 L c sqrt(k) floor_acc + s u_acc |x|
    bound = E (1 + u_out) + u_out |y| + floor_out

``c sqrt(k) u_acc`` is the accumulation: rounding errors of random operands grow with sqrt(k); c leaves room for tensor
cores, which truncate (``GROWTH``, one constant for each accumulator dtype). The 4 are the roundings of the epilogue
(two products, two sums, in fp32). Where sums are too small for their dtype to be relative, each of their roundings
costs ``floor_acc`` times ``|alpha|``, which is at most 2 in every test. ``L`` is the activation's Lipschitz constant,
by which it passes an error of x on; ``s u_acc |x|`` its own evaluation, for the transcendental ones. The last rounding
costs ``u_out |y|`` and no more: ``|y| <= |a_i| |b_j|``, so for a plain matrix product the whole is at most ``c' sqrt(k)
u |a_i| |b_j|`` with ``c' = c + 5`` and u the larger of the two roundoffs, and for 16-bit outputs it is far stricter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tirgemm.gemm import Gemm

UNIT_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# Every integer up to here is a number of the dtype.
INTEGERS = {"f32": 2**24, "f16": 2**11, "bf16": 2**8}
GROWTH = {"f32": 2.0, "f16": 1.0}
# Half the spacing at zero for f16; the smallest normal number where hardware may flush subnormals.
FLOOR = {"f32": 2.0**-126, "f16": 2.0**-25, "bf16": 2.0**-126}
EPILOGUE_ROUNDINGS = 4
MOST_ALPHA = 2.0
ACTIVATION_ROUNDINGS = 64
TRANSCENDENTAL = ("gelu", "gelu_tanh", "silu")
LIPSCHITZ = {"none": 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound's coefficients for one gemm and one test: ``E = per_t T + per_x |x|``, then the output's rounding.

    An exact test has no error but a transcendental activation's; without one its bound is zero.
    """

    per_t: float
    per_x: float
    per_y: float
    floor: float

    @property
    def is_zero(self) -> bool:
        return not (self.per_t or self.per_x or self.per_y or self.floor)


def bound_of(gemm: Gemm, test: str) -> Bound:
    """The coefficients for ``test`` (``exact`` or ``normal``)."""
    u_acc, u_out = UNIT_ROUNDOFF[gemm.acc], UNIT_ROUNDOFF[gemm.out]
    per_x = ACTIVATION_ROUNDINGS * u_acc if gemm.act in TRANSCENDENTAL else 0.0
    if test == "exact":
        if not per_x:
            return Bound(0.0, 0.0, 0.0, 0.0)
        return Bound(0.0, per_x, u_out, FLOOR[gemm.out])
    summed, lipschitz = GROWTH[gemm.acc] * math.sqrt(gemm.k), LIPSCHITZ[gemm.act]
    floor = FLOOR[gemm.out] + MOST_ALPHA * lipschitz * summed * FLOOR[gemm.acc]
    return Bound(lipschitz * (summed + EPILOGUE_ROUNDINGS) * u_acc, per_x, u_out, floor)


def describe(gemm: Gemm, test: str) -> str:
    """The bound as a certificate states it."""
    bound = bound_of(gemm, test)
    if bound.is_zero:
        return "equal"
    last = f"{bound.per_y:.3g} |d| + {bound.floor:.3g}"
    if test == "exact":
        return f"before the activation equal; {bound.per_x:.3g} |x| + {last}"
    own = f" + {bound.per_x:.3g} |x|" if bound.per_x else ""
    return f"{bound.per_t:.3g} (|alpha| |a_i| |b_j| + |beta c| + |bias|){own} + {last}"
