"""Random operands of a problem, the fp64 result that they must give, and how far a kernel may be from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tirgemm.expr import evaluate
from tirgemm.gemm import Gemm
from tirgemm.reference import numbers
from tirgemm.reference.result import expected

_STORED = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}


@dataclass(frozen=True)
class KernelCall:
    """One call: the value of m, tensors as (batch, rows, columns) float64 that are exact in their dtype, scalars."""

    gemm: Gemm
    m: int
    tensors: dict[str, np.ndarray]
    scalars: dict[str, float]

    @classmethod
    def random(cls, gemm: Gemm, m: int, seed: int) -> KernelCall:
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
    def integers(cls, gemm: Gemm, m: int, seed: int) -> KernelCall:
        """As ``random``, with operands of -1, 0 and 1: every sum is exact, in whatever order."""
        case = cls.random(gemm, m, seed)
        rng = np.random.default_rng(seed)
        tensors = {name: rng.integers(-1, 2, value.shape).astype(np.float64) for name, value in case.tensors.items()}
        return cls(gemm, m, tensors, case.scalars)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """D as (batch, m, n) in fp64, and the largest error that each element may have."""
        return expected(self.gemm, self.tensors, self.scalars.get("alpha", 1.0), self.scalars.get("beta", 0.0))

    def check(self, d: np.ndarray) -> None:
        """Assert that ``d``, (batch, m, n), is the result within its bound."""
        wanted, bound = self.expected()
        assert d.shape == wanted.shape
        error = np.abs(d - wanted)
        wrong = ~(error <= bound)
        assert not wrong.any(), (
            f"{wrong.sum()} of {wrong.size} elements are wrong, first at {tuple(np.argwhere(wrong)[0])}: "
            f"{d[wrong][0]} instead of {wanted[wrong][0]}"
        )


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` rounded to ``dtype`` as they lie in memory; bf16 as its 16 bits."""
    return numbers.encode(values, dtype).view(_STORED[dtype])


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The float64 values of what lies in memory."""
    return numbers.decode(stored.view(numbers.BITS[dtype]), dtype)
