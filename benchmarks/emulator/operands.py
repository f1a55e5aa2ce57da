"""Random operands of a problem, the fp64 result that they must give, and how far a kernel may be from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.expr import evaluate
from tirgemm.gemm import Gemm

# Unit roundoff of each dtype.
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}
# The documented constant of the normal test is each dtype's; here one generous value serves all.
_SLACK = 8.0


@dataclass(frozen=True)
class Case:
    """One call: the value of m, tensors as (batch, rows, columns) float64 that are exact in their dtype, scalars."""

    gemm: Gemm
    m: int
    tensors: dict[str, np.ndarray]
    scalars: dict[str, float]

    @classmethod
    def random(cls, gemm: Gemm, m: int, seed: int) -> Case:
        rng = np.random.default_rng(seed)
        tensors: dict[str, np.ndarray] = {}
        for name in gemm.inputs:
            if name == "bias":
                shape: tuple[int, ...] = (gemm.n,)
                dtype = gemm.out
            else:
                op: Any = name
                shape = (gemm.batch, *(evaluate(d, m) for d in gemm.matrix(op)))
                dtype = gemm.operand_dtype(op)
            tensors[name] = decode(encode(rng.standard_normal(shape), dtype), dtype)
        scalars = {"alpha": 0.75, "beta": -1.5}
        return cls(gemm, m, tensors, {name: scalars[name] for name in gemm.scalars})

    @classmethod
    def integers(cls, gemm: Gemm, m: int, seed: int) -> Case:
        """As ``random``, with operands of -1, 0 and 1: every sum is exact, in whatever order, so that D is ``rounded``."""
        case = cls.random(gemm, m, seed)
        rng = np.random.default_rng(seed)
        tensors = {name: rng.integers(-1, 2, value.shape).astype(np.float64) for name, value in case.tensors.items()}
        return cls(gemm, m, tensors, case.scalars)

    def rounded(self) -> np.ndarray:
        """D of operands from ``integers``, rounded once to its dtype. For problems without activation."""
        assert self.gemm.act == "none"
        return decode(encode(self.expected()[0], self.gemm.out), self.gemm.out)

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """A as (batch, m, k) and B as (batch, k, n)."""
        a, b = self.tensors["a"], self.tensors["b"]
        return (a.swapaxes(1, 2) if self.gemm.trans_a else a), (b.swapaxes(1, 2) if self.gemm.trans_b else b)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """D as (batch, m, n) in fp64, and the largest error that each element may have."""
        gemm, (a, b) = self.gemm, self.operands()
        alpha = self.scalars.get("alpha", 1.0)
        value = alpha * (a @ b)
        norms = abs(alpha) * np.linalg.norm(a, axis=2)[:, :, None] * np.linalg.norm(b, axis=1)[:, None, :]
        size = norms.copy()
        if gemm.beta:
            value = value + self.scalars["beta"] * self.tensors["c"]
            size += np.abs(self.scalars["beta"] * self.tensors["c"])
        if gemm.bias:
            value = value + self.tensors["bias"]
            size += np.abs(self.tensors["bias"])
        bound = (
            _SLACK * math.sqrt(gemm.k) * ROUNDOFF[gemm.acc] * norms + _SLACK * (ROUNDOFF[gemm.out] + 2.0**-22) * size
        )
        return _activate(gemm.act, value), bound + 1e-7

    def check(self, d: np.ndarray) -> None:
        """Assert that ``d``, (batch, m, n), is the result within its bound."""
        expected, bound = self.expected()
        assert d.shape == expected.shape
        error = np.abs(d - expected)
        wrong = ~(error <= bound)
        assert not wrong.any(), (
            f"{wrong.sum()} of {wrong.size} elements are wrong, first at {tuple(np.argwhere(wrong)[0])}: "
            f"{d[wrong][0]} instead of {expected[wrong][0]}"
        )


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` rounded to ``dtype`` as they lie in memory; bf16 as its 16 bits."""
    if dtype == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "f16" else np.float32)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The float64 values of what lies in memory."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def _activate(act: str, x: np.ndarray) -> np.ndarray:
    y = x
    if act == "relu":
        y = np.maximum(x, 0)
    elif act == "gelu":
        y = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    elif act == "gelu_tanh":
        y = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    elif act == "silu":
        y = x / (1 + np.exp(-x))
    return np.asarray(y)
