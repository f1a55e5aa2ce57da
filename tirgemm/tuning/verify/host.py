"""Verification's data on the CPU: NumPy, with the reference in fp64 by BLAS, in blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tirgemm.reference.bound import bound_of
from tirgemm.reference.numbers import BITS, POISON, Bits, Floats, decode, encode
from tirgemm.reference.result import result_and_bound
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.verify.plan import GemmTest, OperandPlacement, exact_plan, layout_of, tensor_shape
from tirgemm.tuning.verify.result import ComparedElements, compared

GUARD_BYTES = 1 << 16
_KEPT_BYTES = 1 << 30
_BLOCK_COLUMNS = 4096
_BLOCK_ELEMENTS = 1 << 24
_COMPARED_AT_ONCE = 1 << 18


def placed(flat: Bits, layout: OperandPlacement) -> Bits:
    """The matrices of an operand, (batch, rows, cols) as memory has them, within elements that begin with the first."""
    shape = (layout.batch, layout.rows, layout.cols)
    return np.lib.stride_tricks.as_strided(
        flat, shape, [step * flat.itemsize for step in (layout.stride, layout.ld, 1)]
    )


class HostOperand:
    """An operand between guard bands of NaN, at an address aligned to ``layout.align`` and to no more."""

    def __init__(self, layout: OperandPlacement) -> None:
        self.layout = layout
        item = np.dtype(BITS[layout.dtype]).itemsize
        size = 2 * GUARD_BYTES + layout.span * item
        self._memory = np.empty(size + 4 * layout.align, np.uint8)
        start = (layout.align - self._memory.ctypes.data) % (2 * layout.align)
        self.flat: Bits = self._memory[start : start + size].view(BITS[layout.dtype])
        guard = GUARD_BYTES // item
        self.inside: Bits = placed(self.flat[guard:], layout)
        self.pristine: Bits | None = None
        self.view = View(self.flat.ctypes.data + GUARD_BYTES, layout.dtype, *tensor_shape(layout))

    @property
    def product(self) -> Bits:
        """The bits as the product means them: (batch, m or k, k or n)."""
        return self.inside.transpose(0, 2, 1) if self.layout.transposed else self.inside

    @property
    def nbytes(self) -> int:
        return self.flat.nbytes * (1 if self.pristine is None else 2)

    def poison(self) -> None:
        self.flat[:] = POISON[self.layout.dtype]

    def fill(self, values: npt.NDArray[np.float32]) -> None:
        """``values`` as the product means them; NaN everywhere else."""
        self.write(encode(values, self.layout.dtype))
        self.pristine = self.flat.copy()

    def write(self, bits: Bits) -> None:
        """``bits`` as the product means them; NaN everywhere else."""
        self.poison()
        self.product[...] = bits

    def rows(self, matrix: int, rows: slice) -> Floats:
        return decode(np.ascontiguousarray(self.product[matrix, rows]), self.layout.dtype)

    def columns(self, matrix: int, columns: slice) -> Floats:
        return decode(np.ascontiguousarray(self.product[matrix, :, columns]), self.layout.dtype)


@dataclass
class HostCase:
    """Operands of one problem, and what has been computed from its inputs, for the next kernel.

    ``reference``: D and its bound (None: zero) by matrix and rows and columns; ``lines``: products and norms.
    """

    problem: GemmTest
    operands: dict[str, HostOperand]
    reference: dict[tuple[int, ...], tuple[Floats, npt.NDArray[np.float32] | None]] = field(default_factory=dict)
    lines: dict[tuple[str, bytes], Floats] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        kept = sum(y.nbytes + (b.nbytes if b is not None else 0) for y, b in self.reference.values())
        kept += sum(line.nbytes for line in self.lines.values())
        return kept + sum(operand.nbytes for operand in self.operands.values())


class HostBackend:
    """Keeps the cases of the last problems, up to ``_KEPT_BYTES``: a search verifies one gemm many times.

    ``alive`` is called between pieces of work.
    """

    reference = "numpy fp64"
    most_elements = 1 << 23

    def __init__(self, alive: Callable[[], None] = lambda: None) -> None:
        self._alive = alive
        self._cases: OrderedDict[GemmTest, HostCase] = OrderedDict()

    # -- cases ---------------------------------------------------------------------------------

    def prepare(self, problem: GemmTest) -> HostCase:
        cached = self._cases.get(problem)
        if cached is not None:
            self._cases.move_to_end(problem)
            return cached
        while self._cases and sum(kept.nbytes for kept in self._cases.values()) > _KEPT_BYTES:
            self._cases.popitem(last=False)
        case = HostCase(problem, {})
        rng = np.random.Generator(np.random.SFC64([problem.seed, 0 if problem.test == "exact" else 1, problem.m]))
        for name in (*problem.gemm.inputs, "d"):
            operand = HostOperand(layout_of(problem.gemm, name, problem.m))
            if name != "d":
                operand.fill(_values(problem, name, operand.product.shape, rng))
                self._alive()
            case.operands[name] = operand
        self._cases[problem] = case
        return case

    def run(self, case: HostCase, function: Callable[..., object]) -> None:
        case.operands["d"].poison()
        function(*(operand.view.tensor for operand in case.operands.values()), *case.problem.arguments)
        self._alive()

    def operands(self, problem: GemmTest, inputs: Mapping[str, Bits]) -> dict[str, HostOperand]:
        operands = {name: HostOperand(layout_of(problem.gemm, name, problem.m)) for name in inputs}
        for name, bits in inputs.items():
            operands[name].write(bits)
            self._alive()
        return operands

    def product_bits(
        self, problem: GemmTest, operands: Mapping[str, HostOperand], function: Callable[..., object]
    ) -> Bits:
        d = HostOperand(layout_of(problem.gemm, "d", problem.m))
        d.poison()
        called = [*(operands[name] for name in problem.gemm.inputs), d]
        function(*(operand.view.tensor for operand in called), *problem.arguments)
        self._alive()
        return d.product.copy()

    def disturbed(self, case: HostCase) -> list[str]:
        names = []
        for name, operand in case.operands.items():
            if operand.pristine is None:
                saved = operand.inside.copy()
                operand.inside[...] = POISON[operand.layout.dtype]
                if not (operand.flat == POISON[operand.layout.dtype]).all():
                    names.append(name)
                operand.inside[...] = saved
            elif not np.array_equal(operand.flat, operand.pristine):
                names.append(name)
        if any(name != "d" for name in names):
            self._cases.pop(case.problem, None)
        return names

    # -- comparison ----------------------------------------------------------------------------

    def compare(self, case: HostCase, rows: slice, cols: slice) -> ComparedElements:
        result = ComparedElements(0)
        for matrix in range(case.problem.gemm.batch):
            key = (matrix, rows.start, rows.stop, cols.start, cols.stop)
            if key not in case.reference:
                case.reference[key] = self._expected(case, matrix, rows, cols)
            result += self._compared(case.operands["d"], matrix, rows, cols, *case.reference[key])
        return result

    def compare_random(self, case: HostCase, count: int) -> ComparedElements:
        problem = case.problem
        gemm, d = problem.gemm, case.operands["d"]
        rng = np.random.default_rng([problem.seed, 0x5A3B])
        result = ComparedElements(0)
        for matrix in range(gemm.batch):
            share = -(-count // gemm.batch)
            i, j = rng.integers(problem.m, size=share), rng.integers(gemm.n, size=share)
            a, b = case.operands["a"], case.operands["b"]
            step = max(1, _BLOCK_ELEMENTS // 4 // gemm.k)
            for at in range(0, share, step):
                rows, cols = i[at : at + step], j[at : at + step]
                left = decode(a.product[matrix][rows], a.layout.dtype)
                right = decode(b.product[matrix][:, cols].T.copy(), b.layout.dtype)
                norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
                product = np.einsum("sk,sk->s", left, right)
                y, bound = self._epilogue(case, product, norms, *self._addends(case, matrix, rows, cols))
                comparison, worst = compared(decode(d.product[matrix][rows, cols], d.layout.dtype), y, bound)
                result += replace(comparison, at=(matrix, int(rows[worst]), int(cols[worst])))
                self._alive()
        return result

    def dots(self, case: HostCase, name: str, vector: Floats) -> Floats:
        return self._by_rows(case, name, vector.tobytes(), lambda block, matrix: block @ vector[matrix])

    def norms(self, case: HostCase, name: str) -> Floats:
        return self._by_rows(case, name, b"", lambda block, _: np.linalg.norm(block, axis=1))

    def _by_rows(self, case: HostCase, name: str, key: bytes, function: Callable[[Floats, int], Floats]) -> Floats:
        """``function`` of every row of an operand; kept under ``key`` for inputs."""
        if (name, key) in case.lines:
            return case.lines[name, key]
        operand = case.operands[name]
        batch, rows, cols = operand.product.shape
        step = max(1, _BLOCK_ELEMENTS // cols)
        out = np.empty((batch, rows))
        for matrix in range(batch):
            for at in range(0, rows, step):
                out[matrix, at : at + step] = function(operand.rows(matrix, slice(at, at + step)), matrix)
                self._alive()
        if name != "d":
            case.lines[name, key] = out
        return out

    def _expected(
        self, case: HostCase, matrix: int, rows: slice, cols: slice
    ) -> tuple[Floats, npt.NDArray[np.float32] | None]:
        """D and its bound within rows and columns (None where the bound is zero)."""
        gemm = case.problem.gemm
        y = np.empty((rows.stop - rows.start, cols.stop - cols.start))
        zero = bound_of(gemm, case.problem.test).is_zero
        bound = None if zero else np.empty(y.shape, np.float32)
        step = max(1, _BLOCK_ELEMENTS // max(gemm.k, _BLOCK_COLUMNS))
        for left in range(cols.start, cols.stop, _BLOCK_COLUMNS):
            columns = slice(left, min(left + _BLOCK_COLUMNS, cols.stop))
            b = case.operands["b"].columns(matrix, columns)
            b_norms = np.sqrt(np.einsum("kn,kn->n", b, b))
            for top in range(rows.start, rows.stop, step):
                lines = slice(top, min(top + step, rows.stop))
                a = case.operands["a"].rows(matrix, lines)
                place = (
                    slice(lines.start - rows.start, lines.stop - rows.start),
                    slice(columns.start - cols.start, columns.stop - cols.start),
                )
                norms = np.linalg.norm(a, axis=1)[:, None] * b_norms
                y[place], limits = self._epilogue(case, a @ b, norms, *self._addends(case, matrix, lines, columns))
                if bound is not None:
                    bound[place] = limits
                self._alive()
        return y, bound

    def _addends(
        self, case: HostCase, matrix: int, rows: slice | Bits, cols: slice | Bits
    ) -> tuple[Floats | float, Floats | float]:
        """C and bias where they occur, else 0."""
        c: Floats | float = 0.0
        bias: Floats | float = 0.0
        if case.problem.gemm.beta:
            c = decode(np.ascontiguousarray(case.operands["c"].inside[matrix][rows, cols]), case.problem.gemm.out)
        if case.problem.gemm.bias:
            bias = decode(np.ascontiguousarray(case.operands["bias"].inside[0, 0, cols]), case.problem.gemm.out)
        return c, bias

    def _epilogue(
        self, case: HostCase, product: Floats, norms: Floats, c: Floats | float, bias: Floats | float
    ) -> tuple[Floats, Floats]:
        """D and its bound from the product and the norms of its rows times those of its columns."""
        gemm, (alpha, beta) = case.problem.gemm, case.problem.scalars
        return result_and_bound(gemm, bound_of(gemm, case.problem.test), product, norms, (beta * c, bias), alpha)

    def _compared(
        self, d: HostOperand, matrix: int, rows: slice, cols: slice, y: Floats, bound: npt.NDArray[np.float32] | None
    ) -> ComparedElements:
        result = ComparedElements(0)
        width = y.shape[1]
        step = max(1, _COMPARED_AT_ONCE // width)
        for top in range(0, y.shape[0], step):
            part = slice(top, min(top + step, y.shape[0]))
            bits = d.inside[matrix, rows.start + part.start : rows.start + part.stop, cols]
            got = decode(np.ascontiguousarray(bits), d.layout.dtype)
            comparison, worst = compared(got, y[part], None if bound is None else bound[part])
            row, col = divmod(worst, width)
            result += replace(comparison, at=(matrix, rows.start + top + row, cols.start + col))
        return result


def _values(problem: GemmTest, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    if problem.test == "normal":
        return rng.standard_normal(shape, dtype=np.float32)
    plan = exact_plan(problem.gemm)
    largest = {"a": plan.a_max, "b": plan.b_max}.get(name, plan.addend)
    values = rng.integers(1, largest, size=shape, dtype=np.int8, endpoint=True).astype(np.float32)
    values *= rng.integers(0, 2, size=shape, dtype=np.int8) * 2 - 1
    if name == "a" and plan.period > 1:
        batch, rows, k = shape
        sparse = k - plan.tail
        chosen = rng.integers(plan.period, size=(batch, rows, -(-sparse // plan.period)))
        place = np.arange(sparse)
        values[:, :, :sparse] *= chosen[:, :, place // plan.period] == place % plan.period
    return values
