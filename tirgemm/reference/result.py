"""The result of a problem in fp64, from the product of its matrices, and the error bound of each element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tirgemm.gemm import Gemm
from tirgemm.reference.bound import Bound, bound_of
from tirgemm.reference.numbers import activate

Addend: TypeAlias = "npt.NDArray[Any] | float"


def expected(
    gemm: Gemm, tensors: Mapping[str, npt.NDArray[Any]], alpha: float, beta: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The result in fp64 of inputs as their matrices lie in memory, and for each element how far a right kernel may be
    from it."""
    a, b = (tensors[name].astype(np.float64) for name in ("a", "b"))
    a = np.swapaxes(a, -1, -2) if gemm.trans_a else a
    b = np.swapaxes(b, -1, -2) if gemm.trans_b else b
    norms = np.linalg.norm(a, axis=-1)[..., :, None] * np.linalg.norm(b, axis=-2)[..., None, :]
    scaled_c = float(np.float32(beta)) * tensors["c"].astype(np.float64) if gemm.beta else 0.0
    bias = tensors["bias"].astype(np.float64) if gemm.bias else 0.0
    scale = float(np.float32(alpha)) if gemm.alpha else 1.0
    return result_and_bound(gemm, bound_of(gemm, "normal"), a @ b, norms, (scaled_c, bias), scale)


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
