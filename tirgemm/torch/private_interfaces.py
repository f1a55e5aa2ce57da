"""Private interfaces of PyTorch that ``tirgemm.torch`` uses, in one place. They were tried with PyTorch 2.13.

Each has a public counterpart that is slower, or none, which is said at it; of one that a version of PyTorch does not
have, the public counterpart stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad


def _function(owner: Any, name: str, absent: Callable[[], Any]) -> Callable[[], Any]:
    function: Callable[[], Any] = getattr(owner, name, absent)
    return function


# How many TorchDispatchModes are active in this thread: a fake mode, a FLOP counter. There is no public way to ask.
dispatch_modes = _function(torch._C, "_len_torch_dispatch_stack", lambda: 0)
# The innermost transform of torch.func (vmap, grad, functionalize), or None. There is no public way to ask.
_functorch = getattr(torch._C, "_functorch", None)
transform = _function(_functorch, "peek_interpreter_stack", lambda: None)
# Whether autocast is on for any device; the public torch.is_autocast_enabled takes a device type, and three times as
# long.
any_autocast = _function(
    torch._C, "_is_any_autocast_enabled", lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
)
# As torch.are_deterministic_algorithms_enabled, without a call in Python.
deterministic = _function(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled)


# As torch.jit.is_tracing, without a call in Python.
tracing = _function(torch._C, "_is_tracing", torch.jit.is_tracing)


def _empty_on_cpu(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


# As torch.empty_strided on the CPU, in less than half the time; what Inductor's code allocates with.
empty_on_cpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cpu", _empty_on_cpu
)


def forward_mode() -> bool:
    """Whether this process is within a level of forward-mode differentiation, whose tensors need not require grad.
    There is no public way to ask."""
    return bool(getattr(forward_ad, "_current_level", -1) >= 0)


def intercepted() -> bool:
    """Whether something asks for more than the result of a call: a mode, a transform or a tracer that wants to see it,
    forward-mode differentiation, autocast that casts its operands, deterministic algorithms."""
    return bool(
        dispatch_modes() or any_autocast() or deterministic() or tracing() or forward_mode() or transform() is not None
    )
