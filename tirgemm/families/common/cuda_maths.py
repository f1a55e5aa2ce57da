"""CUDA's maths of the epilogue: additions that NVRTC contracts with no product, for invariant problems."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from tirgemm.gemm import Gemm
from tirgemm.workload import Maths, Uncontracted, activation


def cuda_fma(a: Any, b: Any, c: Any) -> Any:
    """CUDA's fmaf, within loops over vectors, too."""
    return _call("fma", "fmaf", a, b, c)


def cuda_add(a: Any, b: Any) -> Any:
    """CUDA's __fadd_rn, which is contracted with no product, within loops over vectors, too."""
    return _call("add", "__fadd_rn", a, b)


def _call(name: str, function: str, *arguments: Any) -> Any:
    from tvm import tirx

    with _REGISTERING:
        op = _operation(name, function)
    return tirx.call_intrin("float32", op, *arguments)


# TVM takes an operation's attributes once.
_REGISTERING = threading.Lock()


@cache
def _operation(name: str, function: str) -> Any:
    """An operation of TVM's that is written as a call of ``function``, for each element of a vector.

    A call of an extern function would make a loop over vectors one over elements. TVM's own ``fma`` is no choice: where
    a target writes that, every product that is added to something becomes one.
    """
    from tvm import ir, tirx

    def written(call: Any) -> Any:
        return tirx.call_pure_extern(call.ty.dtype, function, *call.args)

    name = f"tirgemm.{name}"
    ir.register_op_attr(name, "TVectorizable", True)
    ir.register_op_attr(name, "TCallEffectKind", tirx.expr.CallEffectKind.Pure.value)
    ir.register_op_attr(name, "TScriptPrinterName", name)
    tirx.op.register_intrin_lowering(name, "cuda", f=written)
    return ir.Op.get(name)


_UNCONTRACTED = Uncontracted(cuda_fma, cuda_add)


def cuda_activation(gemm: Gemm, x: Any) -> Any:
    """The activation of ``gemm``; of an invariant one without a choice for the compiler."""
    return activation(gemm.act, x, _UNCONTRACTED if gemm.invariant else None)


CUDA = Maths(cuda_fma, cuda_activation)
# Without the activation: its formulas mention the value several times, so a kernel computes that first.
CUDA_BEFORE_ACTIVATION = Maths(cuda_fma, lambda _, value: value)
