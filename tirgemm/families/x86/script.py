"""TIR builder of the x86 kernels: parameters, widening loads, edges, transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tirgemm.expr import Dim
from tirgemm.families.x86.layout import CHUNK, PanelTiling
from tirgemm.gemm import DTYPE_NAMES, Operand, Range
from tirgemm.launch import Param, Pointer, Scalar, Size
from tirgemm.workload import dense_strides, evaluate_symbolic, named

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


class Emitter:
    """Writes one PrimFunc and notes the launch's parameters as they are declared."""

    def __init__(self, symbol: str, tiling: PanelTiling) -> None:
        from tvm.tirx.script import builder

        self.symbol, self.tiling, self.gemm = symbol, tiling, tiling.gemm
        self.tir: Any = builder
        self.params: list[Param] = []
        self._m: Any = None

    def function(self, body: Callable[[], None]) -> PrimFunc:
        """The PrimFunc that ``body`` writes."""
        from tvm.script.ir_builder import IRBuilder

        with IRBuilder() as builder:
            with self.tir.prim_func(s_tir=True):
                self.tir.func_name(self.symbol)
                self.tir.func_attr({"global_symbol": self.symbol, "tirx.noalias": True})
                self._m = self.tir.int32() if isinstance(self.gemm.m, Range) else self.gemm.m
                body()
            return builder.get()

    # -- parameters ----------------------------------------------------------------------------

    def tensor(self, name: Operand) -> Any:
        """An operand of the problem, by its own shape and strides."""
        shape, strides = self.gemm.shape(name), self.gemm.strides(name)
        gaps = None if strides == dense_strides(shape) else [self.dim(s) for s in strides]
        dtype = DTYPE_NAMES[self.gemm.operand_dtype(name)]
        return self._pointer(
            name, self.tir.buffer([self.dim(s) for s in shape], dtype, strides=gaps, align=self.gemm.align)
        )

    def bias(self) -> Any:
        return self._pointer("bias", self.tir.buffer([self.gemm.n], DTYPE_NAMES[self.gemm.out], align=self.gemm.align))

    def workspace(self, name: str, shape: tuple[Dim, ...]) -> Any:
        """A workspace of fp32."""
        return self._pointer(name, self.tir.buffer([self.dim(s) for s in shape], "float32", align=64))

    def scalar(self, name: str) -> Any:
        self.params.append(Scalar(name))
        return self.tir.arg(name, self.tir.float32())

    def size_and_block(self, needs_m: bool = True) -> tuple[Any, Any]:
        """m (a parameter where it is a range and occurs) and the block index, the last parameter."""
        if needs_m and isinstance(self.gemm.m, Range):
            self.params.append(Size(self.gemm.m_dim))
            self.tir.arg("m", self._m)
        return self._m, self.tir.arg("block", self.tir.int32())

    def dim(self, value: Dim) -> Any:
        return evaluate_symbolic(value, self._m)

    def _pointer(self, name: str, buffer: Any) -> Any:
        self.params.append(Pointer(name))
        return self.tir.arg(name, buffer)

    # -- elements ------------------------------------------------------------------------------

    def index(self, z: Any, i: Any, j: Any) -> list[Any]:
        """An operand's index; the batch occurs only where there is one."""
        return [z, i, j] if self.gemm.batch > 1 else [i, j]

    def at(self, operand: Any, z: Any, i: Any, j: Any) -> Any:
        """One element as fp32."""
        return self.tir.cast(operand[tuple(self.index(z, i, j))], "float32")

    def guarded_k(self, p: Any, value: Callable[[], Any]) -> Any:
        """``value()``, which reads at ``p``, or zero where the last chunk is beyond k."""
        if self.gemm.k % CHUNK == 0:
            return value()
        return self.tir.if_then_else(p < self.gemm.k, value(), self.tir.float32(0))

    def widen_chunks(self, source: Callable[[Any], Any], store: Callable[[Any, Any, Any], None]) -> None:
        """Copy one row of A, chunk by chunk: whole chunks as vectors, the last one padded with zeros."""
        tir, k = self.tir, self.gemm.k
        whole = k // CHUNK
        if whole:
            with tir.serial(whole) as c, tir.vectorized(CHUNK) as q:
                store(c, q, source(c * CHUNK + q))
        if k % CHUNK:
            with tir.serial(CHUNK) as q:
                p = whole * CHUNK + q
                store(whole, q, self.guarded_k(p, lambda: source(p)))

    def whole_or_edge(
        self, always: bool, whole: Any, inside: Callable[[], None], edge: Callable[[], None] | None = None
    ) -> None:
        """``inside()`` where the condition ``whole`` holds, else ``edge()``; ``always`` where no edge exists."""
        if always:
            inside()
            return
        with self.tir.If(whole):
            with self.tir.Then():
                inside()
            if edge is not None:
                with self.tir.Else():
                    edge()

    # -- vectors -------------------------------------------------------------------------------

    def vector(self, operand: Any, z: Any, i: Any, j: Any, lanes: int) -> Any:
        """``lanes`` neighbours from (i, j) on, as fp32."""
        value = operand[tuple(self.index(z, i, self.ramp(j, lanes)))]
        if str(operand.dtype) == "bfloat16":
            # TVM's legalisation converts the bits of a bound bf16 vector as if they were an integer: shift them here.
            bits = self.tir.cast(self.tir.reinterpret(f"uint16x{lanes}", value), f"uint32x{lanes}")
            shift = self.tir.Broadcast(self.tir.uint32(16), lanes)
            return self.let(self.tir.reinterpret(f"float32x{lanes}", self.tir.shift_left(bits, shift)))
        return self.let(self.tir.cast(value, f"float32x{lanes}"))

    def store_vector(self, buffer: Any, at: list[Any], value: Any) -> None:
        lanes = int(value.ty.dtype.lanes)
        self.tir.buffer_store(buffer, value, [*at[:-1], self.ramp(at[-1], lanes)])

    def ramp(self, base: Any, lanes: int) -> Any:
        return self.tir.Ramp(base, 1, lanes) if lanes > 1 else base

    def let(self, value: Any) -> Any:
        return named("t", self.tir.Bind(value))

    def hold(self, value: Any) -> Any:
        """``value`` through a local buffer: TVM writes a bound expression out again at each of its uses, a load it
        keeps."""
        lanes = int(value.ty.dtype.lanes)
        buffer = named("held", self.tir.sblock_alloc_buffer([lanes], "float32", scope="local"))
        self.tir.buffer_store(buffer, value, [self.ramp(0, lanes)])
        return buffer[self.ramp(0, lanes)]

    def turned_square(self, operand: Any, z: Any, row: Callable[[int], Any], column: Any, lanes: int) -> list[Any]:
        """``lanes`` columns from ``column`` on of as many rows of a matrix, each a vector of fp32."""
        return self.transposed([self.vector(operand, z, row(r), column, lanes) for r in range(lanes)])

    def transposed(self, rows: list[Any]) -> list[Any]:
        """The columns of a square of vectors: each round swaps the off-diagonal halves of squares twice as large."""
        from tvm.tirx import Shuffle

        lanes, width = len(rows), 1
        while width < lanes:
            low = [c if not c & width else lanes + (c ^ width) for c in range(lanes)]
            high = [c | width if not c & width else lanes + c for c in range(lanes)]
            paired: list[Any] = list(rows)
            for i in range(lanes):
                if not i & width:
                    pair = [rows[i], rows[i | width]]
                    paired[i] = self.let(Shuffle(pair, low))
                    paired[i | width] = self.let(Shuffle(pair, high))
            rows, width = paired, width * 2
        return rows
