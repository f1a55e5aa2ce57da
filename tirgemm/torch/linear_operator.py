"""``tirgemm::linear``: the operator that stands for ``linear`` and for layers with packed weights in a graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tirgemm.torch.linear_call import linear, reference, traced_linear
from tirgemm.torch.operator_definition import define_operator
from tirgemm.torch.packed_weight import PACKED_WEIGHTS

_is_compiling = torch.compiler.is_compiling


def packed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, invariant: bool, dependent_launch: bool
) -> Tensor:
    """As ``linear``, with the packed weight where the kernel takes one."""
    if _is_compiling():
        return traced_linear(x, weight, bias, act, invariant, dependent_launch, prepack=True)
    return PACKED_WEIGHTS.linear(x, weight, bias, act, invariant, dependent_launch)


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str,
    invariant: bool = False,
    dependent_launch: bool = False,
    prepack: bool = False,
) -> Tensor:
    # Not what the graph computed itself: Inductor reuses its memory, and AOTInductor replaces constants, uncounted.
    compute = packed_linear if prepack and isinstance(weight, nn.Parameter) else linear
    with torch.no_grad():  # what the operator is for, whatever mode its graph runs in
        return compute(x, weight, bias, act, invariant, dependent_launch).contiguous()


def _describe(x: Tensor, weight: Tensor, bias: Tensor | None, act: str, *_: bool) -> Tensor:
    """The same by PyTorch, whose shape counts while a graph is traced. Raises what PyTorch raises."""
    return reference(x, weight, bias, act).contiguous()


def _differentiated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str,
    invariant: bool = False,
    dependent_launch: bool = False,
    prepack: bool = False,
) -> Tensor:
    """The same by PyTorch, of a weight that may be in training."""
    if prepack and weight.requires_grad:
        PACKED_WEIGHTS.forget(weight)
    return _describe(x, weight, bias, act, invariant, dependent_launch, prepack)


define_operator(
    # Graphs of versions without the last three are run as before.
    "linear(Tensor x, Tensor weight, Tensor? bias, str act, bool invariant=False, bool dependent_launch=False, "
    "bool prepack=False) -> Tensor",
    _run,
    _describe,
    _differentiated,
)
