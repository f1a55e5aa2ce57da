"""Refusal of gradients for PyTorch operators that have none."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.library import CustomOpDef

from tirgemm.errors import CallError


def refuse_gradients(operator: CustomOpDef, name: str, advice: str) -> None:
    """Have a call of ``operator`` raise CallError where an input requires grad, with ``advice`` what to do instead."""

    def refuse(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        del ctx, inputs, output
        raise CallError(f"{name} is for inference and has no gradient, but an input requires grad; {advice}")

    def no_gradient(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        del ctx, gradients
        raise CallError(f"{name} has no gradient")

    operator.register_autograd(no_gradient, setup_context=refuse)
