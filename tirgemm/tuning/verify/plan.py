"""Verification plan: the values of m, the operands, and the elements that are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tirgemm.expr import evaluate
from tirgemm.gemm import DTYPE_BYTES, USUAL_ALIGN, Gemm, Range, operand_named
from tirgemm.reference.bound import INTEGERS

Test = Literal["exact", "normal"]
TESTS: tuple[Test, ...] = ("exact", "normal")
LEVELS = ("candidate", "certificate")
FULL_FLOPS = 2**36
EDGE = 256
SAMPLES = 4096
# Where the activation is not linear, random vectors say nothing about D: many more elements are compared instead.
NONLINEAR_SAMPLES = 65536
VECTORS = 3

_INNER = {"candidate": 2, "certificate": 5}
_DENSE_TAIL = 64
_ADDEND = 4
# Bytes of which each operand that is timed begins at a multiple, unless the problem promises less than is usual.
TIMED_ALIGN = 256


@dataclass(frozen=True, slots=True)
class Exact:
    """Small-integer operands whose partial sums, in any order, and results are numbers of accumulator and output.

    Entries of A are integers of absolute value 1 to ``a_max`` or, where k is too long for that, 0: in the first
    ``k - tail`` columns one of every ``period`` is not 0, at a place of its own in each row, and the last ``tail`` are
    all not 0, so that a dropped last step is always seen. Entries of B are never 0. So
    ``|alpha| sum |a b| + |beta| |c| + |bias|`` is at most the largest integer that both dtypes count to.
    """

    a_max: int
    b_max: int
    period: int
    tail: int
    alpha: float
    beta: float
    addend: int


def exact_plan(gemm: Gemm) -> Exact:
    """The widest integers with which A is dense, else ones and minus ones with a sparse A."""
    alpha, beta = (-2.0 if gemm.alpha else 1.0), (3.0 if gemm.beta else 0.0)
    limit = min(INTEGERS[gemm.acc], INTEGERS[gemm.out])
    addends = _ADDEND * ((abs(int(beta)) if gemm.beta else 0) + (1 if gemm.bias else 0))
    room = (limit - addends) // abs(int(alpha))
    for a_max, b_max in ((8, 8), (4, 4), (2, 4), (2, 2), (1, 2), (1, 1)):
        if gemm.k * a_max * b_max <= room:
            return Exact(a_max, b_max, 1, gemm.k, alpha, beta, _ADDEND)
    tail = min(_DENSE_TAIL, room // 2)
    period = math.ceil((gemm.k - tail) / (room - tail))
    return Exact(1, 1, period, tail, alpha, beta, _ADDEND)


@dataclass(frozen=True, slots=True)
class GemmTest:
    """One test of one gemm at one m."""

    gemm: Gemm
    m: int
    test: Test
    seed: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.gemm.n * self.gemm.k * self.gemm.batch

    @property
    def scalars(self) -> tuple[float, float]:
        """alpha and beta: 1 and 0 where they do not occur. All are numbers of fp16."""
        if self.test == "exact":
            plan = exact_plan(self.gemm)
            return plan.alpha, plan.beta
        return (1.375 if self.gemm.alpha else 1.0), (-0.75 if self.gemm.beta else 0.0)

    @property
    def arguments(self) -> tuple[float, ...]:
        """The scalars that the call takes, in its order."""
        values = dict(zip(("alpha", "beta"), self.scalars, strict=True))
        return tuple(values[name] for name in self.gemm.scalars)


def sizes(gemm: Gemm, level: str) -> tuple[int, ...]:
    """Every m that is verified: the number itself; of a range both ends and odd ones between, evenly on a log scale."""
    if not isinstance(gemm.m, Range):
        return (gemm.m,)
    low, high = gemm.m.low, gemm.m.high
    count = _INNER[level]
    ratio = math.log(high / low)
    between = {round(low * math.exp(ratio * i / (count + 1))) | 1 for i in range(1, count + 1)}
    return tuple(sorted({low, high, *(m for m in between if low < m < high)}))


def compares_in_full(problem: GemmTest, level: str) -> bool:
    return level == "certificate" or problem.flops <= FULL_FLOPS


@dataclass(frozen=True, slots=True)
class OperandPlacement:
    """Where an operand lies at one m: matrices of ``rows`` x ``cols`` in memory, in elements.

    ``transposed`` where memory holds the transpose of what the product means (A: m x k, B: k x n).
    """

    name: str
    dtype: str
    batch: int
    rows: int
    cols: int
    ld: int
    stride: int
    align: int
    transposed: bool

    @property
    def span(self) -> int:
        """Elements from the first to one past the last."""
        return (self.batch - 1) * self.stride + (self.rows - 1) * self.ld + self.cols

    @property
    def nbytes(self) -> int:
        """Bytes of the span."""
        return self.span * DTYPE_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """Bytes up to where another operand may begin, as operands that are timed lie behind one another."""
        align = timed_align(self.align)
        return -(-self.nbytes // align) * align


def operand_layouts(gemm: Gemm) -> list[OperandPlacement]:
    """The layouts of the inputs and of D at the largest m."""
    return [layout_of(gemm, name, gemm.m_max) for name in (*gemm.inputs, "d")]


def timed_start(gemm: Gemm, address: int) -> int:
    """The address of the first operand that is timed, less than 2 * ``timed_align`` bytes behind ``address``.

    Of a problem that promises less alignment than is usual they have what it promises and no more: what is measured is
    what was asked for, for libraries that look at addresses, too.
    """
    align = timed_align(gemm.align)
    return address + -address % align + (gemm.align if gemm.align < USUAL_ALIGN else 0)


def timed_align(align: int) -> int:
    """Bytes that divide the distances between operands that are timed, for a problem of that alignment."""
    return max(TIMED_ALIGN, align)


def layout_of(gemm: Gemm, name: str, m: int) -> OperandPlacement:
    """The layout of ``a``, ``b``, ``c``, ``d`` or ``bias`` (one row of n, the same for every matrix of the batch)."""
    if name == "bias":
        return OperandPlacement(name, gemm.out, 1, 1, gemm.n, gemm.n, 0, gemm.align, False)
    op = operand_named(name)
    fixed = gemm.with_(m=m) if isinstance(gemm.m, Range) else gemm
    rows, cols, ld, stride = (evaluate(d, m) for d in (*fixed.matrix(op), fixed.leading(op), fixed.batch_stride(op)))
    transposed = (name == "a" and gemm.trans_a) or (name == "b" and gemm.trans_b)
    dtype = gemm.operand_dtype(op)
    return OperandPlacement(
        name, dtype, gemm.batch, rows, cols, ld, stride if gemm.batch > 1 else 0, gemm.align, transposed
    )


def tensor_shape(layout: OperandPlacement) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the tensor that a call takes."""
    if layout.name == "bias":
        return (layout.cols,), (1,)
    if layout.batch > 1:
        return (layout.batch, layout.rows, layout.cols), (layout.stride, layout.ld, 1)
    return (layout.rows, layout.cols), (layout.ld, 1)
