"""Verification results, as frozen values, and the comparison of NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.gemm import Gemm
from tirgemm.reference.numbers import Floats

# An error over a bound of zero, or a NaN: JSON has no infinity.
WORST = 1e30


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a packaged kernel is right, and how near the bound it came.

    ``error`` is the largest error over its bound that any test saw (``WORST`` where the bound is zero or the result is
    not a number). ``tests`` says for each what was compared and how; ``kernel_sha256`` is the manifest's.
    """

    passed: bool
    error: float
    tests: tuple[dict[str, Any], ...]
    reference: str
    kernel_sha256: str


@dataclass(frozen=True, slots=True)
class ComparedElements:
    """One comparison: how many elements, how many of them wrong, and the worst of them.

    ``at`` is (batch, row, column); a column of -1 stands for a whole row (Freivalds).
    """

    checked: int
    failures: int = 0
    worst: float = 0.0
    at: tuple[int, int, int] | None = None
    got: float = 0.0
    want: float = 0.0
    bound: float = 0.0

    def __add__(self, other: ComparedElements) -> ComparedElements:
        """Both comparisons together; the worse one's element is kept."""
        worse = other if other.worst > self.worst else self
        return replace(worse, checked=self.checked + other.checked, failures=self.failures + other.failures)

    @property
    def message(self) -> str:
        """For a person: how many elements are wrong and what one of them is; empty where none is."""
        if not self.failures or self.at is None:
            return ""
        where = "row %d of matrix %d" if self.at[2] < 0 else "element [%d, %d] of matrix %d"
        place = where % ((self.at[1], self.at[0]) if self.at[2] < 0 else (self.at[1], self.at[2], self.at[0]))
        wrong = f"{self.failures} of {self.checked} compared are wrong"
        return f"{wrong}; {place} is {self.got!r}, expected {self.want!r} within {self.bound:.3g}"


def ratio(error: float, bound: float) -> float:
    """``error / bound``, finite."""
    if math.isnan(error) or math.isinf(error) or (bound <= 0 < error):
        return WORST
    return min(WORST, error / bound) if bound > 0 else 0.0


def compared(got: Floats, want: Floats, bound: npt.NDArray[Any] | None) -> tuple[ComparedElements, int]:
    """The comparison of one block, and the flat index of its worst element."""
    if bound is None and np.array_equal(got, want):
        return ComparedElements(got.size), 0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got - want)
        limits = np.zeros(got.shape) if bound is None else bound
        share = error / limits  # NaN where 0 / 0: right; infinite or NaN where the error is: wrong
        share[(error == 0) & (limits == 0)] = 0.0
        share[~np.isfinite(error)] = np.inf
        wrong = int((~(error <= limits)).sum())
    at = int(np.argmax(share))
    worst = ratio(float(error.flat[at]), float(limits.flat[at]))
    comparison = ComparedElements(
        got.size, wrong, worst, got=float(got.flat[at]), want=float(want.flat[at]), bound=float(limits.flat[at])
    )
    return comparison, at


def same_bits_report(
    name: str, gemm: Gemm, called: Sequence[int], seed: int, *, method: str, checked: int, message: str
) -> dict[str, Any]:
    """The entry of a certificate's tests for results that must agree bit for bit, of calls with the values ``called``
    of m; ``message`` says where they do not, and is empty where they do."""
    return {
        "name": name,
        "m": max(called),
        "n": gemm.n,
        "k": gemm.k,
        "batch": gemm.batch,
        "seed": seed,
        "bound": "the same bits",
        "passed": not message,
        "error": WORST if message else 0.0,
        "method": method,
        "checked": checked,
        "message": message,
        "sizes": list(called),
    }
