"""Definition of PyTorch operators that record nothing, and are PyTorch's own where derivatives are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tirgemm.artifact.private_torch import LEVEL, redispatch_below_autograd, untraced

Computation: TypeAlias = "Callable[..., Tensor]"

# What is defined goes with it.
_library = torch.library.Library("tirgemm", "FRAGMENT")


def define_operator(
    schema: str,
    run: Computation,
    describe: Computation,
    differentiated: Computation,
    tags: Sequence[torch.Tag] = (),
) -> None:
    """Define the functional operator ``tirgemm::`` and ``schema``, without namespace.

    ``run`` computes it, ``describe`` says its shape while a graph is traced. Where gradients are recorded for an
    argument, or it has a tangent, ``differentiated`` is called instead: made of operators of PyTorch, it has every
    derivative that they have.
    """
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    torch.library.register_kernel(f"tirgemm::{name}", None, run, lib=_library)
    torch.library.register_fake(f"tirgemm::{name}", describe, lib=_library)
    operator = getattr(torch.ops.tirgemm, name).default

    def with_autograd(keys: Any, *args: Any, **more: Any) -> Any:
        tensors = [each for each in (*args, *more.values()) if isinstance(each, Tensor)]
        if records_gradients(*tensors) or has_tangent(*tensors):
            return differentiated(*args, **more)
        return redispatch_below_autograd(operator, keys, *args, **more)

    _library.impl(name, untraced(with_autograd), "Autograd", with_keyset=True)


def records_gradients(*tensors: Tensor | None) -> bool:
    """Whether PyTorch would record a call with these for its backward pass."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def has_tangent(*tensors: Tensor) -> bool:
    """Whether forward-mode differentiation would take one of these along."""
    return getattr(*LEVEL) >= 0 and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
