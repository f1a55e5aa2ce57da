"""Reference GEMM as a TensorIR PrimFunc, and the epilogue and index helpers that families share.

``workload`` is public API of families in other packages, which schedule it (docs/adding-a-family.md). Nothing of it is
padded and nothing is tiled. Parameters are the tensors in call order (``a, b[, c][, bias], d``), the scalars
(``alpha``, ``beta``) as float32, and ``m`` as an int32 where it is a range. Two blocks: ``gemm`` sums the products in
the accumulator's dtype, ``epilogue`` computes ``act(alpha * acc + beta * c + bias)`` in fp32 and rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.expr import Dim, evaluate, make
from tirgemm.gemm import DTYPE_NAMES, OPERANDS, Gemm, Operand, Range

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# Flat offsets are computed in the dtype of the shape: int32 addresses no element beyond this.
_INT32_ELEMENTS = 2**31 - 1


def workload(gemm: Gemm) -> PrimFunc:
    """``gemm`` as a PrimFunc named ``main`` with the blocks ``gemm`` and ``epilogue``."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.tirx.script import builder as tir

    with IRBuilder() as builder:
        with tir.prim_func(s_tir=True):
            tir.func_name("main")
            tir.func_attr({"tirx.noalias": True})
            _body(gemm, tir)
        return builder.get()


def index_dtype(gemm: Gemm, reach: int = 0) -> str:
    """The dtype that holds every flat offset of ``gemm``, and ``reach``: int32 wherever that is enough."""
    used: list[Operand] = [op for op in OPERANDS if op != "c" or gemm.beta]
    spans = [gemm.span(op) for op in used]
    accumulator = gemm.batch * gemm.m_max * gemm.n
    return "int32" if max(*spans, accumulator, reach) <= _INT32_ELEMENTS else "int64"


def epilogue(
    gemm: Gemm,
    acc: Any,
    c: Any,
    bias: Any,
    alpha: Any,
    beta: Any,
    *,
    maths: Maths | None = None,
    lanes: int = 1,
) -> Any:
    """The output element of one accumulated sum, in the output's dtype; what does not occur is ignored.

    ``acc`` has any float dtype, ``c`` and ``bias`` the output's, ``alpha`` and ``beta`` are float32. Shared by every
    family, so that all of them compute the same formula, in the ``maths`` of its target; ``acc``, ``c`` and ``bias``
    may be vectors of ``lanes``.
    """
    from tvm.tirx.script import builder as tir

    value = combine(gemm, acc, c, bias, alpha, beta, maths=maths, lanes=lanes)
    return tir.cast(value, DTYPE_NAMES[gemm.out] if lanes == 1 else f"{DTYPE_NAMES[gemm.out]}x{lanes}")


def combine(
    gemm: Gemm,
    acc: Any,
    c: Any,
    bias: Any,
    alpha: Any,
    beta: Any,
    *,
    maths: Maths | None = None,
    lanes: int = 1,
) -> Any:
    """``epilogue`` before it rounds to the output's dtype: in fp32."""
    from tvm.tirx.script import builder as tir

    def f32(value: Any) -> Any:
        return tir.cast(value, "float32" if lanes == 1 else f"float32x{lanes}")

    fma = maths.fma if maths is not None and gemm.invariant else None
    value = f32(acc)
    if fma is not None and gemm.alpha and gemm.bias and not gemm.beta:
        value = fma(alpha, value, f32(bias))
    else:
        if gemm.alpha:
            value = alpha * value
        if gemm.beta:
            value = value + beta * f32(c) if fma is None else fma(beta, f32(c), value)
        if gemm.bias:
            value = value + f32(bias)
    return maths.activation(gemm, value) if maths is not None else activation(gemm.act, value)


def activation(act: str, x: Any, uncontracted: Uncontracted | None = None) -> Any:
    """The activation of a float32 expression: none, relu, gelu (erf form), gelu_tanh or silu; sums of products by
    ``uncontracted`` operations, where they are given."""
    from tvm.tirx.script import builder as tir

    def f32(value: float) -> Any:
        return tir.float32(value)

    if act == "relu":
        # Not a maximum: a NaN stays a NaN.
        return tir.Select(x < f32(0), f32(0), x)
    if act == "gelu":
        return f32(0.5) * x * (f32(1) + tir.erf(x * f32(math.sqrt(0.5))))
    if act == "gelu_tanh":
        square = f32(0.044715) * x * x
        sum_of_powers = x + square * x if uncontracted is None else uncontracted.fma(square, x, x)
        return f32(0.5) * x * (f32(1) + tir.tanh(f32(math.sqrt(2 / math.pi)) * sum_of_powers))
    if act == "silu":
        # Not a division: of each one NVRTC makes a call of a slow path, which costs it seconds in a large tile. The sum
        # is from 1 to inf, where the square of this is its reciprocal; x * root * root overflows and underflows as
        # the quotient does.
        power = tir.exp(f32(0) - x)
        root = tir.rsqrt(f32(1) + power if uncontracted is None else uncontracted.add(f32(1), power))
        return x * root * root
    return x


@dataclass(frozen=True)
class Uncontracted:
    """Operations of float32 that are rounded once and that no compiler contracts with others: ``fma(a, b, c)``,
    a * b + c, and ``add(a, b)``, a + b."""

    fma: Callable[[Any, Any, Any], Any]
    add: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Maths:
    """How a target computes parts of the epilogue.

    ``fma(a, b, c)``: a * b + c of float32, rounded once. An invariant problem adds every product before the activation
    so: a compiler that may contract a product with the addition does it for some rows and not for others.
    ``activation(gemm, x)``: as the function ``activation``, of the problem's.
    """

    fma: Callable[[Any, Any, Any], Any]
    activation: Callable[[Gemm, Any], Any]


def dense_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The strides of a row-major tensor of ``shape`` without gaps."""
    strides: list[Dim] = [1]
    for extent in reversed(shape[1:]):
        strides.append(make("mul", extent, strides[-1]))
    return tuple(reversed(strides))


def _body(gemm: Gemm, tir: Any) -> None:
    dtype = index_dtype(gemm)
    m_param = tir.int32() if isinstance(gemm.m, Range) else None

    def dim(value: Dim) -> Any:
        if isinstance(value, int):
            return value if dtype == "int32" else tir.int64(value)
        return evaluate_symbolic(value, m_param if dtype == "int32" else tir.cast(m_param, "int64"))

    def tensor(name: Operand) -> Any:
        shape, strides = gemm.shape(name), gemm.strides(name)
        gaps = None if strides == dense_strides(shape) else [dim(s) for s in strides]
        return tir.buffer(
            [dim(s) for s in shape], DTYPE_NAMES[gemm.operand_dtype(name)], strides=gaps, align=gemm.align
        )

    A = tir.arg("a", tensor("a"))
    B = tir.arg("b", tensor("b"))
    C = tir.arg("c", tensor("c")) if gemm.beta else None
    bias = tir.arg("bias", tir.buffer([dim(gemm.n)], DTYPE_NAMES[gemm.out], align=gemm.align)) if gemm.bias else None
    D = tir.arg("d", tensor("d"))
    alpha = tir.arg("alpha", tir.float32()) if gemm.alpha else None
    beta = tir.arg("beta", tir.float32()) if gemm.beta else None
    if m_param is not None:
        tir.arg("m", m_param)

    batched = gemm.batch > 1
    outer = [dim(gemm.batch)] if batched else []
    spatial = [*outer, dim(gemm.m_dim), dim(gemm.n)]
    acc_dtype = DTYPE_NAMES[gemm.acc]
    acc = named("acc", tir.sblock_alloc_buffer(spatial, acc_dtype))
    names = ["z", "i", "j"][3 - len(spatial) :]

    with tir.grid(*spatial, dim(gemm.k)) as loops, tir.sblock("gemm"):
        *at, p = _axes(tir, [*names, "p"], loops)
        *b, i, j = at
        with tir.init():
            tir.buffer_store(acc, _zero(tir, acc_dtype), at)
        left = A[(*b, p, i) if gemm.trans_a else (*b, i, p)]
        right = B[(*b, j, p) if gemm.trans_b else (*b, p, j)]
        tir.buffer_store(acc, acc[tuple(at)] + tir.cast(left, acc_dtype) * tir.cast(right, acc_dtype), at)

    with tir.grid(*spatial) as loops, tir.sblock("epilogue"):
        at = _axes(tir, names, loops)
        j = at[-1]
        c = C[tuple(at)] if C is not None else None
        tir.buffer_store(D, epilogue(gemm, acc[tuple(at)], c, bias[j] if bias is not None else None, alpha, beta), at)


def evaluate_symbolic(value: Dim, m: Any) -> Any:
    """``value`` as a TIR expression in the variable ``m``; sizes are positive, so truncation is the floor."""
    from tvm import tirx

    if isinstance(value, int):
        return value
    if value.op == "m":
        return m
    left, right = evaluate_symbolic(value.left, m), evaluate_symbolic(value.right, m)
    if isinstance(left, int) and isinstance(right, int):
        return evaluate(value, 0)
    operators: dict[str, Any] = {
        "add": lambda: left + right,
        "sub": lambda: left - right,
        "mul": lambda: left * right,
        "floordiv": lambda: tirx.floordiv(left, right),
        "ceildiv": lambda: tirx.floordiv(left + right - 1, right),
        "mod": lambda: tirx.floormod(left, right),
        "min": lambda: tirx.min(left, right),
        "max": lambda: tirx.max(left, right),
    }
    return operators[value.op]()


def named(name: str, value: Any) -> Any:
    """``value``, called ``name`` in the script."""
    from tvm.script.ir_builder import IRBuilder

    return IRBuilder.name(name, value)


def _axes(tir: Any, names: list[str], loops: Any) -> list[Any]:
    """The block's variables over ``loops``, named; ``p`` is the reduction."""
    loops = [named(name, loop) for name, loop in zip(names, loops, strict=True)]
    kinds = "".join("R" if name == "p" else "S" for name in names)
    return [named(f"v{name}", var) for name, var in zip(names, tir.axis.remap(kinds, loops), strict=True)]


def _zero(tir: Any, dtype: str) -> Any:
    return tir.float16(0) if dtype == "float16" else tir.float32(0)
