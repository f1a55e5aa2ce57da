"""The result of a problem in fp64, from the product of its matrices, and the error bound of each element."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tirgemm.gemm import Gemm
from tirgemm.reference.bound import Bound
from tirgemm.reference.numbers import activate

Addend: TypeAlias = "npt.NDArray[Any] | float"


def result_and_bound(
    gemm: Gemm,
    limits: Bound,
    product: npt.NDArray[Any],
    norms: npt.NDArray[Any],
    addends: tuple[Addend, Addend],
    alpha: float = 1.0,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """D and how far a right kernel may be from it, element by element, as ``tirgemm.reference.bound`` derives it.

    ``product`` is A B in fp64, ``norms`` the Euclidean norms of A's rows times those of B's columns, ``addends`` are
    beta C and the bias, 0 where they do not occur.
    """
    scaled_c, bias = addends
    x = alpha * product + (scaled_c + bias)
    size = abs(alpha) * norms + (np.abs(scaled_c) + np.abs(bias))
    y = activate(x, gemm.act)
    error = limits.per_t * size + limits.per_x * np.abs(x)
    return y, error * (1 + limits.per_y) + limits.per_y * np.abs(y) + limits.floor
