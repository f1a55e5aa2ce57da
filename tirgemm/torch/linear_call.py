"""``linear``: ``act(x @ weight.T + bias)`` by the kernel of the table that serves the call, by PyTorch without one.

In eager mode the launcher is called directly; only where a graph is traced (torch.compile, torch.export) does the
operator ``tirgemm::linear`` stand for the call, and chooses the kernel when the graph runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tirgemm.artifact import tensor_calls
from tirgemm.artifact.private_torch import FAKE_TENSORS, LEVEL, intercepted, transformed, watched
from tirgemm.errors import InvalidRequest, check_flags
from tirgemm.gemm import ACTIVATIONS
from tirgemm.torch.operator_definition import records_gradients
from tirgemm.torch.prepared_call import (
    NO_KERNEL,
    REFUSED,
    CallChoice,
    PreparedCall,
    ProductOperands,
    Unserved,
    choose,
)
from tirgemm.torch.problems import within_storage
from tirgemm.torch.served_calls import SERVED, ServedCall, lasts, served_call

PLAIN = tensor_calls.plain_tensors()
# What stands for them while a graph is traced, too.
_TRACED = PLAIN.union(FAKE_TENSORS)

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
}
_kept = tensor_calls.kept_call()
# Reasons for which a dense copy of x is tried where PyTorch's bits will not do: it begins at another address.
_COPIED = (NO_KERNEL, "strides", "alignment")
LOG = logging.getLogger("tirgemm.torch")
# What the launcher keeps calls for dependent launches by, in place of ``invariant``: as that, by identity. No caller
# has these objects.
_DEPENDENT, _DEPENDENT_INVARIANT = object(), object()
# Calls that were to be invariant and are PyTorch's, as far as they were logged.
_TOLD: set[tuple[str, str]] = set()
_MOST_TOLD = 4096
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_compiling = torch.compiler.is_compiling


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    act: str = "none",
    invariant: bool = False,
    dependent_launch: bool = False,
) -> Tensor:
    """``act(x @ weight.T + bias)`` as ``torch.nn.functional.linear`` computes it, followed by the activation.

    x is (..., k), weight (n, k), bias (n,); the result is (..., n). Where no kernel serves the call, where gradients
    are recorded, under autocast, deterministic algorithms, a mode or a transform of torch.func, for subclasses
    and nested tensors, PyTorch computes it. ``invariant`` takes only kernels that give a row the same bits whatever the
    other rows are; what PyTorch computes then, it logs once. ``dependent_launch`` takes only kernels for programmatic
    dependent launch, as ``accelerate`` brings them. Raises what PyTorch raises, InvalidRequest for an unknown
    activation and for an ``invariant`` or ``dependent_launch`` that is no bool.
    """
    if _is_dynamo_compiling():
        return traced_linear(x, weight, bias, act, invariant, dependent_launch)
    kernels = _dependent(invariant, dependent_launch) if dependent_launch else invariant
    if (out := _kept(x, weight, bias, act, kernels)) is not None:
        result: Tensor = out
        return result
    if _is_compiling():  # torch.export without dynamo
        return traced_linear(x, weight, bias, act, invariant, dependent_launch)
    return _chosen(x, weight, bias, act, invariant, dependent_launch)


def _dependent(invariant: bool, dependent_launch: bool) -> object:
    check_flags(invariant=invariant, dependent_launch=dependent_launch)
    return _DEPENDENT_INVARIANT if invariant else _DEPENDENT


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, act: str) -> Tensor:
    """What ``linear`` computes, by PyTorch."""
    return activation(act)(functional.linear(x, weight, bias))


def activation(act: str) -> Callable[[Tensor], Tensor]:
    """PyTorch's function of that name. Raises InvalidRequest."""
    try:
        return _ACTIVATIONS[act]
    except (KeyError, TypeError):
        raise InvalidRequest(f"act is {act!r:.80}; it must be one of {', '.join(ACTIVATIONS)}") from None


def linear_choice(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str = "none",
    invariant: bool = False,
    dependent_launch: bool = False,
) -> CallChoice:
    """The kernel that serves a call of ``linear``, or why PyTorch computes it."""
    if type(x) not in PLAIN or type(weight) not in PLAIN or (bias is not None and type(bias) not in PLAIN):
        return Unserved("tensor subclass")
    if x.is_nested or weight.is_nested or (bias is not None and bias.is_nested):
        return Unserved("nested tensor")
    if intercepted():
        return Unserved("autocast, deterministic algorithms, a mode, a transform or a tracer")
    if records_gradients(x, weight, bias):
        return Unserved("requires grad")
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        return Unserved("shapes")
    if x.numel() == 0 or weight.numel() == 0:
        return Unserved("empty operand")
    if x.layout is not torch.strided or weight.layout is not torch.strided:
        return Unserved("no strided tensor")
    # Of the weight, ``weight.mT`` below raises what PyTorch raises; PyTorch itself does not look at that of x.
    if bias is not None and bias.layout is torch.strided and not within_storage(bias):
        return Unserved("storage smaller than the tensor")
    try:
        rows = x if x.dim() == 2 else x.view(-1, x.shape[-1])
    except RuntimeError:
        return Unserved("strides")
    return choose(
        ProductOperands(
            rows,
            weight.mT,
            bias=bias,
            act=act,
            prefer_b="t",
            invariant=invariant,
            dependent_launch=dependent_launch,
        )
    )


def _chosen(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, invariant: bool, dependent_launch: bool
) -> Tensor:
    result: Tensor
    check_flags(invariant=invariant, dependent_launch=dependent_launch)
    if act == "none" and not invariant and intercepted():  # autocast, say: nothing is looked at twice
        result = functional.linear(x, weight, bias)
        return result
    activation(act)
    generation = SERVED.generation
    choice = linear_choice(x, weight, bias, act, invariant, dependent_launch)
    how = act, _dependent(invariant, dependent_launch) if dependent_launch else invariant
    if isinstance(choice, PreparedCall):
        try:
            out = choice.run_rows(x, weight.mT, bias)
        except REFUSED:  # PyTorch computes it, or says what is wrong
            return reference(x, weight, bias, act)
        if choice.columns_b and not choice.columns_a:  # where the kernel reads both as they are given
            call = served_call(x, weight, choice, rows=x.dim() != 2)
            if call is not None:
                SERVED.keep((x, weight, bias), how, call, generation)
        return out
    if invariant:
        if choice.reason in _COPIED:
            dense = x.clone(memory_format=torch.contiguous_format)
            copied = linear_choice(dense, weight, bias, act, invariant, dependent_launch)
            if isinstance(copied, PreparedCall):
                return copied.run_rows(dense, weight.mT, bias)
        result = reference(x, weight, bias, act)
        if choice.reason != "empty operand":  # no row, or the bias in every row
            _tell(choice, weight)
        return result
    if lasts(choice.reason, x, weight, bias):
        # Until the table changes: each call in full would cost much more.
        SERVED.keep((x, weight, bias), how, _pytorch(x, act), generation)
    return reference(x, weight, bias, act)


def _pytorch(like: Tensor, act: str) -> ServedCall:
    """PyTorch's function of x, weight and bias, for x that are as ``like`` in all but their address; None for those of
    other strides, which may have a kernel. The launcher has compared the rest, and where x is dense all of it."""
    compute: ServedCall = functional.linear if act == "none" else partial(reference, act=act)
    if like.is_contiguous():
        return compute
    strides = like.stride()

    def call(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        if x.stride() != strides:
            return None
        result: Tensor = compute(x, weight, bias)
        return result

    return call


def _tell(choice: Unserved, weight: Tensor) -> None:
    """Log that PyTorch computes a call whose bits are to be invariant, once for a problem or a reason."""
    what = str(choice.gemm) if choice.gemm is not None else f"a weight of shape {tuple(weight.shape)}"
    if (what, choice.reason) not in _TOLD and len(_TOLD) < _MOST_TOLD:
        _TOLD.add((what, choice.reason))
        LOG.warning("PyTorch computes %s (%s), whose rows may have other bits in other batches", what, choice.reason)


def traced_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str,
    invariant: bool,
    dependent_launch: bool,
    prepack: bool = False,
) -> Tensor:
    """The call in a graph. What is not for the operator is PyTorch's own there too."""
    if not traceable(x, weight, *(() if bias is None else (bias,))):
        return reference(x, weight, bias, act)
    result: Tensor = torch.ops.tirgemm.linear(x, weight, bias, act, invariant, dependent_launch, prepack)
    return result


def traceable(first: Tensor, *others: Tensor) -> bool:
    """Whether an operator of ours may stand for a call with these in a graph. Dynamo traces this."""
    if torch.is_autocast_enabled(first.device.type) or torch.are_deterministic_algorithms_enabled():
        return False
    if getattr(*LEVEL) >= 0 or transformed() or records_gradients(first, *others):
        return False
    if _is_dynamo_compiling() and watched():  # torch.export without dynamo has modes of its own
        return False
    # Not type(tensor), of which dynamo makes a guard that it cannot check for a parameter made within the graph.
    return all(not tensor.is_nested and tensor.__class__ in _TRACED for tensor in (first, *others))
