"""Kernel parameters, declared in TIR and recorded in the same order for the launch; offsets into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tirgemm.expr import Dim, evaluate, make
from tirgemm.families.common.ring_buffer import TIMELINE, RingBuffer
from tirgemm.families.wgmma.planning.maps import edge_map, load_map, store_map
from tirgemm.families.wgmma.planning.names import TMA
from tirgemm.families.wgmma.planning.plan import Plan
from tirgemm.gemm import DTYPE_BYTES, DTYPE_NAMES, Operand, Range
from tirgemm.launch import Param, Pointer, Scalar, Size, TensorMap
from tirgemm.workload import index_dtype

# Two elements as one word, by the bytes of an element.
WORDS = {2: "uint32", 4: "uint64"}
_INT32_MAX = 2**31 - 1
_FACTORS: tuple[Operand, ...] = ("a", "b")


class Arguments:
    """Declares parameters in the PrimFunc that is open. ``memory`` and ``maps`` hold them by name; with a ``ring``,
    what multiplies also takes the ring buffers of its time stamps."""

    def __init__(self, plan: Plan, ring: RingBuffer | None = None) -> None:
        from tvm.tirx.script import builder

        self.tir: Any = builder
        self.plan, self.gemm, self.ring = plan, plan.gemm, ring
        self.params: list[Param] = []
        self.maps: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}
        self.scalars: dict[str, Any] = {}
        self.m: Any = plan.gemm.m
        self.ranged = isinstance(plan.gemm.m, Range)
        elements = plan.grid.slices * plan.grid.pitch * plan.gemm.m_max if plan.cluster.writes_partials else 0
        self._wide = index_dtype(plan.gemm, elements) == "int64"

    def declare_gemm(self) -> None:
        """What the kernel that multiplies takes."""
        for operand in _FACTORS:
            if self.plan.loads.copied[operand]:
                self._pointer(operand, self.gemm.span(operand), DTYPE_NAMES[self.gemm.dtype])
            else:
                self._map(operand, load_map(self.plan, operand))
                if (edge := edge_map(self.plan, operand)) is not None:
                    self._map(operand, edge, "_edge")
        if self.plan.cluster.writes_partials:
            self._partials()
        else:
            self._inputs_of_epilogue()
            if self.plan.epilogue == TMA:
                self._map("d", store_map(self.plan))
            else:
                self._operand("d")
            self._scalars()
        self._size()
        if self.ring is not None:
            self._pointer(TIMELINE, self.ring.words, "uint32")

    def declare_reduce(self) -> None:
        """What the kernel that adds the parts of a split takes."""
        self._partials()
        self._inputs_of_epilogue()
        self._operand("d")
        self._scalars()
        self._size()

    # -- values --------------------------------------------------------------------------------

    def dim(self, value: Dim) -> Any:
        """``value`` as an int32 expression."""
        return self._symbolic(value, self.m)

    def element(self, name: Operand, matrix: Any, row: Any, column: Any) -> Any:
        """The place of an element of C or D."""
        stride = self.gemm.batch_stride(name) if self.gemm.batch > 1 else 0
        return self._offset((matrix, stride), (row, self.gemm.leading(name)), (column, 1))

    def place_of(self, name: Operand, matrix: Any, row: Any, column: Any) -> Any:
        """The place of an element of A or B as an int64, whatever the operand's size."""
        cast, gemm = self.tir.cast, self.gemm
        stride = gemm.batch_stride(name) if gemm.batch > 1 else 0
        total = cast(column, "int64") + cast(row, "int64") * self._symbolic(gemm.leading(name), cast(self.m, "int64"))
        return total if stride == 0 else total + cast(matrix, "int64") * self._symbolic(stride, cast(self.m, "int64"))

    def partial(self, slice_: Any, row: Any, column: Any) -> Any:
        """The place of an element of the partial sums."""
        rows = make("mul", self.gemm.m_dim, self.plan.grid.pitch)
        return self._offset((slice_, rows), (row, self.plan.grid.pitch), (column, 1))

    def elements_of(self, name: str) -> Any:
        """C, D or the bias as elements, whether declared as words or not."""
        memory = self.memory[name]
        return memory.view(DTYPE_NAMES[self.gemm.out]) if self.plan.pairs else memory

    def _symbolic(self, value: Dim, m: Any) -> Any:
        """``value`` in terms of ``m``. C's division: it is shorter than the floor, and nothing here is negative."""
        if isinstance(value, int):
            return value
        if value.op == "m":
            return m
        left, right = self._symbolic(value.left, m), self._symbolic(value.right, m)
        if isinstance(left, int) and isinstance(right, int):
            return evaluate(value, 0)
        operators: dict[str, Callable[[], Any]] = {
            "add": lambda: left + right,
            "sub": lambda: left - right,
            "mul": lambda: left * right,
            "floordiv": lambda: self.tir.truncdiv(left, right),
            "ceildiv": lambda: self.tir.truncdiv(left + (right - 1), right),
            "mod": lambda: self.tir.truncmod(left, right),
            "min": lambda: self.tir.min(left, right),
            "max": lambda: self.tir.max(left, right),
        }
        return operators[value.op]()

    def _offset(self, *terms: tuple[Any, Dim]) -> Any:
        cast: Callable[..., Any] = self.tir.cast
        total: Any = 0
        for index, stride in terms:
            if isinstance(stride, int) and stride == 0:
                continue
            value = self._symbolic(stride, cast(self.m, "int64") if self._wide else self.m)
            total = (cast(index, "int64") if self._wide else index) * value + total
        return total

    # -- declarations --------------------------------------------------------------------------

    def _map(self, operand: Operand, spec: TensorMap, suffix: str = "") -> None:
        """The descriptor of an operand, or of its copy; ``suffix`` tells apart several of one."""
        self.maps[operand + suffix] = self.tir.arg(f"{spec.name}{suffix}_map", self.tir.handle("tensormap"))
        self.params.append(spec)

    def _inputs_of_epilogue(self) -> None:
        if self.gemm.beta:
            self._operand("c")
        if self.gemm.bias:
            self._elements("bias", self.gemm.n)

    def _operand(self, name: Operand) -> None:
        """C or D as a flat buffer."""
        self._elements(name, self.gemm.span(name))

    def _elements(self, name: str, elements: int) -> None:
        """What is laid out along D's columns: words of two elements where they are aligned, else elements."""
        if self.plan.pairs:
            self._pointer(name, -(-elements // 2), WORDS[DTYPE_BYTES[self.gemm.out]])
        else:
            self._pointer(name, elements, DTYPE_NAMES[self.gemm.out])

    def _partials(self) -> None:
        self._pointer("partials", self.plan.grid.slices * self.plan.grid.pitch * self.gemm.m_max // 2, WORDS[4])

    def _pointer(self, name: str, count: int, dtype: str) -> None:
        extent = count if count <= _INT32_MAX else self.tir.int64(count)
        self.memory[name] = self.tir.arg(name, self.tir.buffer([extent], dtype, align=min(self.gemm.align, 64)))
        self.params.append(Pointer(name))

    def _scalars(self) -> None:
        for name in self.gemm.scalars:
            self.scalars[name] = self.tir.arg(name, self.tir.float32())
            self.params.append(Scalar(name))

    def _size(self) -> None:
        if self.ranged:
            self.m = self.tir.arg("m", self.tir.int32())
            self.params.append(Size(self.gemm.m_dim))
