"""Invariance test: the bits of a row of D alone, among other rows, at other places, at every call.

Rows of A and C are copies of a few with names (numbers); B, bias and scalars are fixed by n, k and the dtypes. So all
launches must give rows of one name one row of bits, and the hash of the first name's is the *row signature*: the
same for all kernels of a ``row_class`` on one architecture, whatever m each was built for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tirgemm.gemm import Gemm, Range
from tirgemm.reference.numbers import BITS, Bits, encode
from tirgemm.tuning.verify.plan import GemmTest
from tirgemm.tuning.verify.result import same_bits_report

NAME = "invariant"
MOST_ROWS = 8192
_NAMES = 251
_SIZES = 4
# Of a range at least so many rows more than its low end are tried: several register tiles of a CPU's and an edge.
_MORE_ROWS = 28
# Calls of every size, each with every row at another place.
_CALLS = 3
# Every so many values drawn anew: a prime, so that no two rows or columns are alike.
_PERIOD = 1_000_003
_SALTS = {"a": 1, "b": 2, "c": 3, "bias": 4}


class RowBackend(Protocol):
    """Data on one device. ``most_elements``: of A or of D, beyond which no larger m is tried."""

    most_elements: int

    def operands(self, problem: GemmTest, inputs: Mapping[str, Bits]) -> dict[str, Any]:
        """Operands of these bits, which are given as the product means them, a batch in front; bias is (1, 1, n)."""
        ...

    def product_bits(self, problem: GemmTest, operands: Mapping[str, Any], function: Callable[..., object]) -> Bits:
        """The bits of D, (batch, m, n), of a call with these inputs."""
        ...


def invariance_report(backend: RowBackend, gemm: Gemm, function: Callable[..., object], seed: int) -> dict[str, Any]:
    """The entry of a certificate's tests. ``signature`` is the row signature, ``sizes`` are the values of m called."""
    pools = _Pools(gemm)
    seen: Bits = np.zeros((_NAMES, gemm.n), BITS[gemm.out])
    known = np.zeros(_NAMES, bool)
    rng = np.random.default_rng([seed, 0x1AB])
    calls, checked, message = 0, 0, ""
    called = row_counts(gemm, backend.most_elements, rng)
    # Alike for every m.
    shared = backend.operands(GemmTest(gemm, called[0], "normal", seed), pools.shared())
    for m in called:
        order = rng.permutation(m)
        for turn in range(_CALLS):
            names = np.stack([_arranged(order, turn * gemm.batch + matrix) for matrix in range(gemm.batch)])
            problem = GemmTest(gemm, m, "normal", seed)
            rows = backend.operands(problem, pools.rows(names))
            got = backend.product_bits(problem, shared | rows, function)
            calls, checked = calls + 1, checked + got.size
            message = message or _compared(names, got, seen, known, m)
    report = same_bits_report(NAME, gemm, called, seed, method=f"{calls} calls", checked=checked, message=message)
    return report | {"signature": hashlib.sha256(np.ascontiguousarray(seen[0]).tobytes()).hexdigest()}


def row_counts(gemm: Gemm, most_elements: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Every m that is called: the number itself; of a range its low end and random ones on a log scale, as far as
    ``MOST_ROWS`` and ``most_elements`` of A and D allow, and always up to ``_MORE_ROWS`` more: one m alone says nothing
    of what depends on m."""
    if not isinstance(gemm.m, Range):
        return (gemm.m,)
    allowed = min(MOST_ROWS, most_elements // (gemm.batch * max(gemm.n, gemm.k)))
    high = min(gemm.m.high, max(allowed, gemm.m.low + _MORE_ROWS))
    drawn = np.exp(rng.uniform(math.log(gemm.m.low), math.log(high), size=_SIZES)).astype(int)
    return tuple(sorted({gemm.m.low, high, *(int(m) for m in drawn.clip(gemm.m.low, high))}))


def _arranged(order: npt.NDArray[np.int64], shift: int) -> npt.NDArray[np.int64]:
    """Names of m rows: 0, 1, ... moved ``shift`` places along ``order``, so that no two shifts below m leave one where
    it was."""
    names = np.empty_like(order)
    names[order] = np.roll(order, shift) % _NAMES
    return names


def _compared(names: npt.NDArray[np.int64], got: Bits, seen: Bits, known: npt.NDArray[np.bool_], m: int) -> str:
    """What differs from the rows of bits that are known by name; new ones become known."""
    for matrix, (rows, bits) in enumerate(zip(names, got, strict=True)):
        new, first = np.unique(rows, return_index=True)
        fresh = ~known[new]
        seen[new[fresh]], known[new[fresh]] = bits[first[fresh]], True
        wrong = (bits != seen[rows]).any(axis=1)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            return (
                f"{int(wrong.sum())} of {m} rows have other bits than at another place or size; row {at} of matrix "
                f"{matrix} is the first of {m}"
            )
    return ""


class _Pools:
    """Inputs of a problem: ``_NAMES`` rows of A and C, all of B, and the bias."""

    def __init__(self, gemm: Gemm) -> None:
        self._gemm = gemm
        self._rows = {"a": _values("a", (_NAMES, gemm.k), gemm.dtype)}
        if gemm.beta:
            self._rows["c"] = _values("c", (_NAMES, gemm.n), gemm.out)

    def shared(self) -> dict[str, Bits]:
        """B, the same in all matrices and made as it lies in memory, which is quicker; and the bias."""
        gemm = self._gemm
        b = _values("b", (gemm.n, gemm.k), gemm.dtype).T if gemm.trans_b else _values("b", (gemm.k, gemm.n), gemm.dtype)
        bias = {"bias": _values("bias", (1, 1, gemm.n), gemm.out)} if gemm.bias else {}
        return {"b": np.broadcast_to(b, (gemm.batch, *b.shape))} | bias

    def rows(self, names: npt.NDArray[np.int64]) -> dict[str, Bits]:
        """A and C, whose rows in every matrix are those of ``names``."""
        return {name: pool[names] for name, pool in self._rows.items()}


def _values(name: str, shape: tuple[int, ...], dtype: str) -> Bits:
    """Numbers of both signs and of magnitudes from 2^-7 to 2: their sums round at every step and depend on its order.

    Hashed from their places, not drawn: signatures outlive versions of NumPy.
    """
    place = np.arange(_PERIOD, dtype=np.uint64) + np.uint64(_SALTS[name] << 32)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        place = (place ^ (place >> np.uint64(shift))) * np.uint64(factor)
    sign, exponent = (place & np.uint64(1)).astype(np.float32) * 2 - 1, (place >> np.uint64(1)) & np.uint64(7)
    fraction = 1 + (place >> np.uint64(41)).astype(np.float32) * np.float32(2**-23)
    values = sign * np.ldexp(fraction, -exponent.astype(np.int32)).astype(np.float32)
    bits: Bits = np.resize(encode(values, dtype), shape)
    return bits
