"""Writer of a TensorIR problem over whole tiles: kernel parameters, guards at edges, the epilogue's store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tirgemm import expr
from tirgemm.expr import Dim
from tirgemm.families.common.cuda_maths import CUDA
from tirgemm.gemm import DTYPE_NAMES, OPERANDS, Gemm, Operand, Range
from tirgemm.workload import epilogue, evaluate_symbolic

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# Where an operand is read from a copy: elements from a row to the next, and from a matrix to the next.
Lying = Mapping[Operand, tuple[Dim, Dim]]


def tiles_reach(
    gemm: Gemm,
    tile_m: int,
    tile_n: int,
    depth: int,
    lying: Lying | None = None,
    operands: tuple[Operand, ...] = OPERANDS,
    *,
    proofs: bool = True,
) -> int:
    """The largest offset, in elements, that whole tiles of any of ``operands`` take; ``depth`` is k in whole tiles.

    Tiles reach over a tensor's edges. Nothing is read or written there, but addresses are computed, and the distance
    from one tile to the next is a constant of its own even where there is one tile. ``proofs``: and that TVM's proofs
    take, which have a batch's distance from its first matrix to the second behind its last.
    """
    m, n = -(-gemm.m_max // tile_m) * tile_m, -(-gemm.n // tile_n) * tile_n
    shapes: dict[Operand, tuple[int, int]] = {
        "a": (depth, m) if gemm.trans_a else (m, depth),
        "b": (n, depth) if gemm.trans_b else (depth, n),
        "c": (m, n),
        "d": (m, n),
    }
    reaches = []
    for operand in operands:
        rows, columns = shapes[operand]
        distances = (lying or {}).get(operand) or (gemm.leading(operand), gemm.batch_stride(operand))
        row, matrix = (expr.evaluate(distance, gemm.m_max) for distance in distances)
        reaches.append((gemm.batch - 1) * matrix + rows * row + columns)
        if proofs and gemm.batch > 1 and (operand != "c" or gemm.beta):
            reaches.append((gemm.batch + 1) * matrix)
    return max(reaches)


class StagedWriter(ABC):
    """Writes a PrimFunc ``symbol`` of ``gemm``. ``index`` is the dtype that holds every offset."""

    def __init__(self, gemm: Gemm, index: str, symbol: str) -> None:
        from tvm import tirx
        from tvm.tirx.script import builder as tir

        self.tir, self.tirx, self.gemm, self.index, self.symbol = tir, tirx, gemm, index, symbol
        self.m: Any = None
        self.c: Any = None
        self.bias: Any = None
        self.d: Any = None
        self.alpha: Any = None
        self.beta: Any = None

    def primfunc(self) -> PrimFunc:
        from tvm.script.ir_builder import IRBuilder

        with IRBuilder() as builder:
            with self.tir.prim_func(s_tir=True):
                self.tir.func_name(self.symbol)
                self.tir.func_attr({"tirx.noalias": True})
                self.write()
            return builder.get()

    @abstractmethod
    def write(self) -> None:
        """The parameters, then the blocks."""

    # -- parameters ----------------------------------------------------------------------------------------------------

    def declare_size(self) -> None:
        """m as a symbol that shapes can mention; the parameter itself comes last."""
        self.m = self.tir.int32() if isinstance(self.gemm.m, Range) else None

    def declare_m(self) -> None:
        if self.m is not None:
            self.tir.arg("m", self.m)

    def declare_outputs(self) -> None:
        """What the epilogue takes: c, bias, d, the scalars."""
        T, gemm = self.tir, self.gemm
        self.c = T.arg("c", self.tensor("c")) if gemm.beta else None
        bias = T.buffer([self.dim(gemm.n)], DTYPE_NAMES[gemm.out], align=gemm.align)
        self.bias = T.arg("bias", bias) if gemm.bias else None
        self.d = T.arg("d", self.tensor("d"))
        self.alpha = T.arg("alpha", T.float32()) if gemm.alpha else None
        self.beta = T.arg("beta", T.float32()) if gemm.beta else None

    def tensor(self, operand: Operand) -> Any:
        gemm = self.gemm
        shape, strides = ([self.dim(d) for d in dims] for dims in (gemm.shape(operand), gemm.strides(operand)))
        return self.tir.buffer(shape, DTYPE_NAMES[gemm.operand_dtype(operand)], strides=strides, align=gemm.align)

    # -- statements ----------------------------------------------------------------------------------------------------

    def finish(self, total: Any, z: Any, i: Any, j: Any) -> None:
        """Store the output of a sum."""
        c = self.c[self.place(z, i, j)] if self.c is not None else None
        bias = self.bias[j] if self.bias is not None else None
        value = epilogue(self.gemm, total, c, bias, self.alpha, self.beta, maths=CUDA)
        self.tir.buffer_store(self.d, value, self.place(z, i, j))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def dim(self, value: Dim) -> Any:
        if isinstance(value, int):
            return value if self.index == "int32" else self.tir.int64(value)
        return evaluate_symbolic(value, self.m if self.index == "int32" else self.tir.cast(self.m, "int64"))

    def place(self, z: Any, row: Any, column: Any) -> tuple[Any, ...]:
        return (z, row, column) if self.gemm.batch > 1 else (row, column)

    def guard(self, index: Any, size: Dim, block: int, width: int = 1) -> list[Any]:
        """The condition that ``index`` is inside, or nothing where whole blocks cover ``size`` exactly."""
        if isinstance(size, int) and size % block == 0:
            return []
        if width == 1:
            return [index < self.dim(size)]
        return [self.tirx.floordiv(index, self.dim(width)) < self.dim(expr.make("floordiv", size, width))]

    def every(self, conditions: list[Any]) -> Any:
        return self.tirx.all(*conditions) if len(conditions) > 1 else conditions[0]

    def zero(self, dtype: str) -> Any:
        return self.tirx.const(0, dtype)
