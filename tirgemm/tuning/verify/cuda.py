"""Verification's data on a GPU: our own plain kernels (``reference.cu``) make the operands, check them and compare
D."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm._extras import needed_by
from tirgemm.gemm import Gemm
from tirgemm.reference.bound import bound_of
from tirgemm.reference.numbers import BITS, POISON, Bits, Floats
from tirgemm.tuning.driver.cuda import Gpu, Memory, Module
from tirgemm.tuning.driver.tensors import CUDA, View
from tirgemm.tuning.verify.host import GUARD_BYTES, placed
from tirgemm.tuning.verify.plan import GemmTest, OperandPlacement, exact_plan, layout_of, tensor_shape
from tirgemm.tuning.verify.result import ComparedElements

with needed_by("tirgemm.tuning.verify"):
    import tvm_ffi

_SOURCE = Path(__file__).with_name("reference.cu")
_DTYPES = {"f16": 0, "bf16": 1, "f32": 2}
_POISON, _NORMAL, _INTEGERS, _SPARSE_INTEGERS = range(4)
_WRITE, _CHECK, _CHECK_OUTSIDE = range(3)
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
_THREADS = 256
_KEPT_SHARE = 8
_TILE = 64
_NO_ELEMENT = 2**64 - 1


class _Operand(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("elements", "guard", "span")),
        *((name, ctypes.c_int64) for name in ("batch", "rows", "cols", "ld", "stride")),
        *((name, ctypes.c_int) for name in ("dtype", "transposed")),
    ]


class _Fill(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("period", "tail")),
        *((name, ctypes.c_int) for name in ("kind", "largest")),
    ]


class _Epilogue(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_double) for name in ("alpha", "beta", "per_t", "per_x", "per_y", "floor")),
        *((name, ctypes.c_int) for name in ("activation", "has_c", "has_bias")),
    ]


class CudaOperand:
    """An operand between guard bands of NaN, at an address aligned to ``layout.align`` and to no more."""

    def __init__(self, gpu: Gpu, layout: OperandPlacement, fill: _Fill) -> None:
        self.layout = layout
        self.fill = fill
        item = np.dtype(BITS[layout.dtype]).itemsize
        size = 2 * GUARD_BYTES + layout.span * item
        self.memory = Memory(size + 4 * layout.align)
        base = self.memory.address + (layout.align - self.memory.address) % (2 * layout.align)
        self.argument = _Operand(
            base,
            size // item,
            GUARD_BYTES // item,
            layout.span,
            layout.batch,
            layout.rows,
            layout.cols,
            layout.ld,
            layout.stride,
            _DTYPES[layout.dtype],
            layout.transposed,
        )
        self.view = View(base + GUARD_BYTES, layout.dtype, *tensor_shape(layout), CUDA, gpu.ordinal)

    def write(self, gpu: Gpu, bits: Bits) -> None:
        """``bits`` as the product means them; NaN between rows."""
        flat = np.full(self.layout.span, POISON[self.layout.dtype], BITS[self.layout.dtype])
        inside = placed(flat, self.layout)
        inside[...] = bits.transpose(0, 2, 1) if self.layout.transposed else bits
        gpu.to_device(self.view.address, flat)

    def read(self, gpu: Gpu) -> Bits:
        """The matrices as memory has them."""
        flat = np.empty(self.layout.span, BITS[self.layout.dtype])
        gpu.to_host(self.view.address, flat)
        return placed(flat, self.layout)

    @property
    def lines(self) -> tuple[int, int]:
        """Rows and columns as the product means them."""
        shape = self.layout.rows, self.layout.cols
        return (shape[1], shape[0]) if self.layout.transposed else shape


@dataclass
class CudaCase:
    """Operands of one problem, the norms that bounds need, and the full reference once it has been computed."""

    problem: GemmTest
    operands: dict[str, CudaOperand]
    a_norms: Memory
    b_norms: Memory
    y: Memory | None = None
    bounds: Memory | None = None

    @property
    def nbytes(self) -> int:
        kept = sum(memory.nbytes for memory in (self.y, self.bounds) if memory is not None)
        return kept + sum(operand.memory.nbytes for operand in self.operands.values())


class CudaBackend:
    """Keeps the cases of the last problems, up to an eighth of the GPU's memory. ``alive`` is called between
    kernels."""

    reference = "plain CUDA kernels, fp64"
    most_elements = 1 << 28

    def __init__(self, gpu: Gpu, alive: Callable[[], None] = lambda: None) -> None:
        self._gpu = gpu
        self._alive = alive
        self._module = Module(_SOURCE, gpu.device.arch)
        self._cases: OrderedDict[GemmTest, CudaCase] = OrderedDict()
        self._kept_bytes = gpu.device.memory_bytes // _KEPT_SHARE
        self._result = Memory(24)
        self._counts = Memory(64)

    # -- cases ---------------------------------------------------------------------------------

    def prepare(self, problem: GemmTest) -> CudaCase:
        cached = self._cases.get(problem)
        if cached is not None:
            self._cases.move_to_end(problem)
            return cached
        gemm, operands = problem.gemm, {}
        while self._cases and self._crowded(gemm):
            self._cases.popitem(last=False)
        for name in (*gemm.inputs, "d"):
            operands[name] = self._operand(problem, name)
            self._launch_fill(operands[name], _WRITE, self._counts.address)
        a_norms, b_norms = Memory(8 * gemm.batch * problem.m), Memory(8 * gemm.batch * gemm.n)
        self._launch_lines(operands["a"], False, 0, a_norms.address)
        self._launch_lines(operands["b"], True, 0, b_norms.address)
        self._gpu.synchronize()
        self._alive()
        case = CudaCase(problem, operands, a_norms, b_norms)
        self._cases[problem] = case
        return case

    def _crowded(self, gemm: Gemm) -> bool:
        kept = sum(case.nbytes for case in self._cases.values())
        return kept > self._kept_bytes or self._gpu.free_bytes() < 2 * gemm.nbytes

    def forget(self) -> None:
        """Give the memory of all kept cases back."""
        self._cases.clear()

    def run(self, case: CudaCase, function: Callable[..., object]) -> None:
        self._call(case.operands, case.problem, function)

    def operands(self, problem: GemmTest, inputs: Mapping[str, Bits]) -> dict[str, CudaOperand]:
        operands = {name: self._operand(problem, name) for name in inputs}
        for name, bits in inputs.items():
            operands[name].write(self._gpu, bits)
            self._alive()
        return operands

    def product_bits(
        self, problem: GemmTest, operands: Mapping[str, CudaOperand], function: Callable[..., object]
    ) -> Bits:
        d = self._operand(problem, "d")
        self._call({name: operands[name] for name in problem.gemm.inputs} | {"d": d}, problem, function)
        return d.read(self._gpu)

    def _operand(self, problem: GemmTest, name: str) -> CudaOperand:
        return CudaOperand(self._gpu, layout_of(problem.gemm, name, problem.m), _fill_of(problem, name))

    def _call(self, operands: Mapping[str, CudaOperand], problem: GemmTest, function: Callable[..., object]) -> None:
        """Fill D with NaN, call the kernel, wait for it."""
        self._launch_fill(operands["d"], _WRITE, self._counts.address)
        with self.on_stream():
            function(*(operand.view.tensor for operand in operands.values()), *problem.arguments)
        self._gpu.synchronize()
        self._alive()

    def on_stream(self) -> AbstractContextManager[object]:
        """Within the block kernels are launched on this backend's stream."""
        place = tvm_ffi.device("cuda", self._gpu.ordinal)
        entered: AbstractContextManager[object] = tvm_ffi.use_raw_stream(place, int(self._gpu.stream))
        return entered

    def differing(self, one: Memory, other: Memory) -> int:
        """How many 16-bit words of two memories of one size, filled with elements, are not the same."""
        count, words = np.zeros(1, np.uint64), one.nbytes // 2
        self._gpu.to_device(self._counts.address, count)
        arguments = _pointer(one), _pointer(other), ctypes.c_uint64(words), ctypes.c_void_p(self._counts.address)
        self._launch("differing", max(1, min(4096, -(-words // _THREADS))), *arguments)
        self._gpu.to_host(self._counts.address, count)
        self._alive()
        return int(count[0])

    def disturbed(self, case: CudaCase) -> list[str]:
        counts = np.zeros(self._counts.nbytes // 8, np.uint64)
        self._gpu.to_device(self._counts.address, counts)
        for i, (name, operand) in enumerate(case.operands.items()):
            self._launch_fill(operand, _CHECK_OUTSIDE if name == "d" else _CHECK, self._counts.address + 8 * i)
        self._gpu.to_host(self._counts.address, counts)
        names = [name for i, name in enumerate(case.operands) if counts[i]]
        if any(name != "d" for name in names):
            self._cases.pop(case.problem, None)
        return names

    def fill_normal(self, address: int, nbytes: int, dtype: str, seed: int, divisor: int = 1) -> None:
        """Queue the filling of memory with random normal numbers, divided by ``divisor``."""
        count = nbytes // int(np.dtype(BITS[dtype]).itemsize)
        whole = _Operand(address, count, 0, count, 1, 1, count, count, 0, _DTYPES[dtype], 0)
        grid = max(1, min(4096, -(-count // _THREADS)))
        self._launch("fill", grid, whole, _Fill(seed % 2**64, 1, 0, _NORMAL, divisor), ctypes.c_int(_WRITE), self._to())

    # -- comparison ----------------------------------------------------------------------------

    def compare(self, case: CudaCase, rows: slice, cols: slice) -> ComparedElements:
        gemm, m = case.problem.gemm, case.problem.m
        height, width = rows.stop - rows.start, cols.stop - cols.start
        full = (height, width) == (m, gemm.n)
        total = gemm.batch * height * width
        self._clear_result()
        if full and case.y is not None and case.bounds is not None:
            grid = min(4096, -(-total // _THREADS))
            self._launch(
                "compare", grid, case.operands["d"].argument, _pointer(case.y), _pointer(case.bounds), self._to()
            )
            return self._found(case, total)
        y = bounds = None
        if full and 12 * total <= min(self._kept_bytes, self._gpu.free_bytes() // 2):
            y, bounds = Memory(8 * total), Memory(4 * total)
        grid = gemm.batch * -(-height // _TILE) * -(-width // _TILE)
        extents = (ctypes.c_int64(v) for v in (gemm.k, rows.start, height, cols.start, width))
        self._launch("reference", grid, *self._arguments(case), *extents, _pointer(y), _pointer(bounds), self._to())
        comparison = self._found(case, total)
        case.y, case.bounds = y or case.y, bounds or case.bounds
        return comparison

    def compare_random(self, case: CudaCase, count: int) -> ComparedElements:
        gemm, m = case.problem.gemm, case.problem.m
        rng = np.random.default_rng([case.problem.seed, 0x5A3B])
        self._clear_result()
        self._singles(case, rng.integers(gemm.batch * m * gemm.n, size=count, dtype=np.uint64), None)
        return self._found(case, count)

    def dots(self, case: CudaCase, name: str, vector: Floats) -> Floats:
        operand = case.operands[name]
        data = np.ascontiguousarray(vector, np.float64)
        given = Memory(data.nbytes)
        self._gpu.to_device(given.address, data)
        return self._by_rows(operand, given.address)

    def norms(self, case: CudaCase, name: str) -> Floats:
        return self._by_rows(case.operands[name], 0)

    def _by_rows(self, operand: CudaOperand, vector: int) -> Floats:
        out = np.empty((operand.layout.batch, operand.lines[0]))
        memory = Memory(out.nbytes)
        self._launch_lines(operand, False, vector, memory.address)
        self._gpu.to_host(memory.address, out)
        self._alive()
        return out

    def _found(self, case: CudaCase, checked: int) -> ComparedElements:
        result = np.empty(3, np.uint64)
        self._gpu.to_host(self._result.address, result)
        self._alive()
        failures, worst = int(result[0]), float(result[1:2].view(np.float64)[0])
        if not failures:
            return ComparedElements(checked, worst=worst)
        values = np.empty(3)
        memory = Memory(values.nbytes)
        self._singles(case, result[2:3], memory)
        self._gpu.to_host(memory.address, values)
        matrix, place = divmod(int(result[2]), case.problem.m * case.problem.gemm.n)
        at = (matrix, *divmod(place, case.problem.gemm.n))
        return ComparedElements(checked, failures, worst, at, *(float(v) for v in values))

    # -- kernels -------------------------------------------------------------------------------

    def _arguments(self, case: CudaCase) -> tuple[Any, ...]:
        """What ``reference`` and ``single`` both begin with; operands that do not occur are never read."""
        gemm, (alpha, beta) = case.problem.gemm, case.problem.scalars
        limits = bound_of(gemm, case.problem.test)
        epilogue = _Epilogue(
            alpha,
            beta,
            limits.per_t,
            limits.per_x,
            limits.per_y,
            limits.floor,
            _ACTIVATIONS[gemm.act],
            gemm.beta,
            gemm.bias,
        )
        given = [case.operands.get(name, case.operands["a"]).argument for name in ("a", "b", "c", "bias", "d")]
        return (*given, epilogue, _pointer(case.a_norms), _pointer(case.b_norms))

    def _singles(self, case: CudaCase, elements: npt.NDArray[np.uint64], values: Memory | None) -> None:
        elements = np.ascontiguousarray(elements)
        places = Memory(elements.nbytes)
        self._gpu.to_device(places.address, elements)
        extra = (ctypes.c_int64(case.problem.gemm.k), _pointer(places), _pointer(values), self._to())
        self._launch("single", elements.size, *self._arguments(case), *extra)
        self._gpu.synchronize()

    def _launch(self, name: str, grid: int, *arguments: Any) -> None:
        self._module.launch(self._gpu.stream, name, grid, _THREADS, *arguments)

    def _launch_fill(self, operand: CudaOperand, mode: int, counter: int) -> None:
        grid = min(4096, -(-operand.argument.elements // _THREADS))
        self._launch("fill", grid, operand.argument, operand.fill, ctypes.c_int(mode), ctypes.c_void_p(counter))

    def _launch_lines(self, operand: CudaOperand, by_columns: bool, vector: int, out: int) -> None:
        grid = operand.layout.batch * operand.lines[by_columns]
        which = ctypes.c_int(by_columns)
        self._launch("lines", grid, operand.argument, which, ctypes.c_void_p(vector), ctypes.c_void_p(out))

    def _clear_result(self) -> None:
        self._gpu.to_device(self._result.address, np.array([0, 0, _NO_ELEMENT], np.uint64))

    def _to(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._result.address)


def _pointer(memory: Memory | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(memory.address if memory is not None else 0)


def _fill_of(problem: GemmTest, name: str) -> _Fill:
    number = ("a", "b", "c", "bias", "d").index(name)
    seed = ((problem.seed * 1_000_003 + problem.m) * 10 + 5 * (problem.test == "exact") + number) % 2**64
    if name == "d":
        return _Fill(seed, 1, 0, _POISON, 1)
    if problem.test == "normal":
        return _Fill(seed, 1, 0, _NORMAL, 1)
    plan = exact_plan(problem.gemm)
    largest = {"a": plan.a_max, "b": plan.b_max}.get(name, plan.addend)
    sparse = name == "a" and plan.period > 1
    return _Fill(seed, plan.period, plan.tail, _SPARSE_INTEGERS if sparse else _INTEGERS, largest)
