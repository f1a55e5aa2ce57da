"""``matmul``: products of two tensors by the kernel of the table that serves them, by PyTorch without one."""

from __future__ import annotations

import torch
from torch import Tensor

from tirgemm.artifact import tensor_calls
from tirgemm.artifact.private_torch import intercepted
from tirgemm.torch.linear_call import PLAIN, traceable
from tirgemm.torch.operator_definition import define_operator, records_gradients
from tirgemm.torch.prepared_call import REFUSED, CallChoice, PreparedCall, ProductOperands, Unserved, choose
from tirgemm.torch.served_calls import SERVED, ServedCall, lasts, served_call

_kept = tensor_calls.kept_call()
# What the launcher keeps products by, in place of what says which kernels may serve a call of ``linear``: no caller has
# this object.
_PRODUCT = object()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul(a, b)``: of two matrices, of two batches, or of a (..., k) with a matrix.

    A and B may lie by rows or by columns, with leading dimensions and batch strides of their own. Everything else, and
    what ``linear`` leaves to PyTorch, PyTorch computes. Raises what PyTorch raises.
    """
    if torch.compiler.is_compiling():
        if not traceable(a, b):
            return torch.matmul(a, b)
        result: Tensor = torch.ops.tirgemm.matmul(a, b)
        return result
    kept: Tensor | None = _kept(a, b, None, "none", _PRODUCT)
    return _chosen(a, b) if kept is None else kept


def _chosen(a: Tensor, b: Tensor) -> Tensor:
    generation = SERVED.generation
    choice = matmul_choice(a, b)
    call: ServedCall | None = None
    out: Tensor | None = None
    if isinstance(choice, PreparedCall):
        try:
            out = choice.run(a, b) if a.dim() == b.dim() else choice.run_rows(a, b)
        except REFUSED:  # PyTorch computes it, or says what is wrong
            return torch.matmul(a, b)
        if not (choice.columns_a or choice.batch_of_one):
            call = _served(a, b, choice)
    elif lasts(choice.reason, a, b, None) and choice.reason != "strides" and a.is_contiguous():
        call = _by_pytorch_alone
    if call is not None:
        # Until the table changes: each call in full would cost much more.
        SERVED.keep((a, b, None), ("none", _PRODUCT), call, generation)
    return torch.matmul(a, b) if out is None else out


def _served(a: Tensor, b: Tensor, choice: PreparedCall) -> ServedCall | None:
    """The launcher's function for calls as this one, of b as the caller has it."""
    call = served_call(a, b, choice, rows=a.dim() != b.dim())
    if call is None or not choice.columns_b:
        return call
    by_columns = call
    return lambda a, b, _: by_columns(a, b.mT, None)


def _by_pytorch_alone(a: Tensor, b: Tensor, _: Tensor | None) -> Tensor:
    return torch.matmul(a, b)


def matmul_choice(a: Tensor, b: Tensor) -> CallChoice:
    """The kernel that serves a call of ``matmul``, or why PyTorch computes it."""
    if type(a) not in PLAIN or type(b) not in PLAIN:
        return Unserved("tensor subclass")
    if a.is_nested or b.is_nested:
        return Unserved("nested tensor")
    if intercepted():
        return Unserved("autocast, deterministic algorithms, a mode, a transform or a tracer")
    if records_gradients(a, b):
        return Unserved("requires grad")
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return Unserved("no strided tensor")
    if a.dim() == b.dim():
        return choose(ProductOperands(a, b))
    if b.dim() != 2 or a.dim() < 1 or 0 in a.shape:
        return Unserved("shapes")
    try:
        return choose(ProductOperands(a.view(-1, a.shape[-1]), b))
    except RuntimeError:
        return Unserved("strides")


def _run(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        return matmul(a, b).contiguous()


def _by_pytorch(a: Tensor, b: Tensor) -> Tensor:
    """The same by PyTorch, whose shape counts while a graph is traced, and which is differentiated."""
    return torch.matmul(a, b).contiguous()


define_operator("matmul(Tensor a, Tensor b) -> Tensor", _run, _by_pytorch, _by_pytorch)
