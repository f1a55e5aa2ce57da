"""Kernels as the PyTorch operator ``tirgemm::gemm``: it works under ``torch.compile`` and passes ``opcheck``.

The operator names its kernel by the kernel's SHA-256, so that a graph that PyTorch keeps from one process to the next
cannot meet another kernel. It is functional (it mutates nothing) and for inference: an input that requires grad is
refused while gradients are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from tirgemm import expr
from tirgemm.artifact import Kernel
from tirgemm.errors import CallError, CallTypeError, InvalidRequest
from tirgemm.expr import Dim
from tirgemm.gemm import Gemm, Operand, Range
from tirgemm.torch.kernel_table import TABLE, table_of
from tirgemm.torch.operator_definition import define_operator
from tirgemm.torch.problems import DTYPES

MatmulOp: TypeAlias = "Callable[..., Tensor]"
InputName: TypeAlias = 'Operand | Literal["bias"]'

NAME = "tirgemm::gemm"


def register(kernel: Kernel) -> str:
    """Make ``kernel`` callable by the operators and return the text that names it in ``tirgemm::gemm``: its SHA-256.

    ``linear``, ``matmul`` and ``routed`` use it for the calls that it serves; one for dependent launches ``linear``
    alone, where that is asked for. Raises InvalidRequest for what is no loaded kernel.
    """
    _require_kernel(kernel)
    table_of(kernel.manifest.dependent_launch).add(kernel)
    return TABLE.name(kernel)


def registered(name: str) -> Kernel:
    """The kernel that was registered under ``name``. Raises InvalidRequest."""
    return TABLE.named(name)


def matmul_op(kernel: Kernel) -> MatmulOp:
    """``kernel`` as a function of tensors: ``f(a, b, c=None, bias=None, *, alpha=1.0, beta=1.0) -> Tensor``.

    a, b, c and bias have the shapes, dtypes and strides of the kernel's Gemm and lie on its device; C and bias are
    given where they occur, alpha and beta are 1 where they do not. Raises CallError and CallTypeError; under
    ``torch.compile``, while it traces. Raises InvalidRequest for what is no loaded kernel.
    """
    _require_kernel(kernel)
    name = TABLE.name(kernel)

    def gemm(
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> Tensor:
        result: Tensor = torch.ops.tirgemm.gemm(a, b, c, bias, name, alpha, beta)
        return result

    gemm.__doc__ = f"{kernel.gemm}"
    return gemm


def _require_kernel(kernel: object) -> None:
    if not isinstance(kernel, Kernel):
        raise InvalidRequest(f"kernel is {kernel!r:.80}; give a loaded kernel, such as tirgemm.load of a file returns")


def _run(a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, kernel: str, alpha: float, beta: float) -> Tensor:
    named = registered(kernel)
    gemm = named.gemm
    tensors = {name: t.detach() if t.requires_grad else t for name, t in _given(gemm, a, b, c, bias).items()}
    shape, strides = _result(gemm, _rows(gemm, a))
    out = torch.empty_strided(shape, strides, dtype=DTYPES[gemm.out], device=a.device)
    scalars = _scalars(gemm, alpha, beta)
    operands = tensors["a"], tensors["b"], tensors.get("c"), tensors.get("bias")
    named.within_operator(operands, (scalars.get("alpha"), scalars.get("beta")), out)
    return out


def _describe(
    a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, kernel: str, alpha: float, beta: float
) -> Tensor:
    """What ``_run`` returns, without running: for tracing with fake tensors."""
    gemm = registered(kernel).gemm
    _scalars(gemm, alpha, beta)
    rows = _rows(gemm, a)
    for name, tensor in _given(gemm, a, b, c, bias).items():
        _check(gemm, name, tensor, rows)
    shape, strides = _result(gemm, rows)
    return torch.empty_strided(shape, strides, dtype=DTYPES[gemm.out], device=a.device)


def _given(gemm: Gemm, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None) -> dict[InputName, Tensor]:
    """The tensors of the call by name. Raises CallTypeError for one that is missing or superfluous."""
    tensors: dict[InputName, Tensor] = {"a": a, "b": b}
    optional: tuple[tuple[InputName, Tensor | None, bool], ...] = (("c", c, gemm.beta), ("bias", bias, gemm.bias))
    for name, tensor, occurs in optional:
        if (tensor is not None) != occurs:
            raise CallTypeError(
                f"{name} {'is missing' if occurs else 'was given'}; {gemm} takes {', '.join(gemm.inputs)}"
            )
        if tensor is not None:
            tensors[name] = tensor
    return tensors


def _scalars(gemm: Gemm, alpha: float, beta: float) -> dict[str, float]:
    """The scalars of the call by name. Raises CallTypeError for one that is not 1 where the problem has none."""
    given = {"alpha": alpha, "beta": beta}
    for name, value in given.items():
        if name not in gemm.scalars and value != 1:
            raise CallTypeError(f"{name} is {value}, but {gemm} has no {name}")
    return {name: given[name] for name in gemm.scalars}


def _rows(gemm: Gemm, a: Tensor) -> int:
    """m of the call: the kernel's, or that of A where the kernel takes a range (a symbol while tracing)."""
    if not isinstance(gemm.m, Range):
        return gemm.m
    if a.dim() != (3 if gemm.batch > 1 else 2):
        raise CallError(f"a has {a.dim()} dimensions; {gemm} takes {3 if gemm.batch > 1 else 2}")
    rows: int = a.shape[-1 if gemm.trans_a else -2]
    return rows


def _result(gemm: Gemm, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return _at(gemm.shape("d"), rows), _at(gemm.strides("d"), rows)


def _check(gemm: Gemm, name: InputName, tensor: Tensor, rows: int) -> None:
    dtype = gemm.out if name == "bias" else gemm.operand_dtype(name)
    shape = (gemm.n,) if name == "bias" else _at(gemm.shape(name), rows)
    if tensor.dtype != DTYPES[dtype]:
        raise CallTypeError(f"{name} has dtype {tensor.dtype}; {gemm} takes {DTYPES[dtype]}")
    if tensor.dim() != len(shape) or any(have != want for have, want in zip(tensor.shape, shape, strict=True)):
        raise CallError(f"{name} has shape {tuple(tensor.shape)}; {gemm} takes {tuple(shape)}")


def _at(dims: tuple[Dim, ...], rows: int) -> tuple[int, ...]:
    return tuple(expr.evaluate(dim, rows) for dim in dims)


def _refuse(*_: object) -> Tensor:
    raise CallError(
        f"{NAME} is for inference and has no gradient, but an input requires grad or has a tangent; call it under "
        "torch.no_grad() or torch.inference_mode(), or detach the input"
    )


define_operator(
    "gemm(Tensor a, Tensor b, Tensor? c, Tensor? bias, str kernel, float alpha, float beta) -> Tensor",
    _run,
    _describe,
    _refuse,
    tags=(torch.Tag.needs_fixed_stride_order,),
)
