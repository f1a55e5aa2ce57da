"""Wrappers of PyTorch's private functions, with what is called instead where the installed PyTorch lacks one.

That is the public function of the same meaning, if there is one; it is slower. No other module calls private functions
of PyTorch. They were tried with PyTorch 2.13 on CPUs and 2.11 on an H200. ``__dlpack_c_exchange_api__``, which
``artifact/tensor_calls.py`` reads, is none: it is DLPack's, for whoever takes tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

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


Empty: TypeAlias = "Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]"
# As torch.empty_strided on the CPU and on the current GPU, in less than half the time; what Inductor's code allocates
# with.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_empty_on_cpu: Empty | None = getattr(_guards, "_empty_strided_cpu", None)
_empty_on_cuda: Empty | None = getattr(_guards, "_empty_strided_cuda", None)


def empty_on(place: torch.device) -> Empty:
    """What allocates (shape, strides, dtype) there."""
    fast = _empty_on_cpu if place.type == "cpu" else None
    if place.type == "cuda" and torch.cuda.device_count() == 1:  # the current one
        fast = _empty_on_cuda
    if fast is not None:
        return fast
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=place)


# 0 and more within a level of forward-mode differentiation, whose tensors need not require grad. There is no public way
# to ask.
LEVEL: tuple[Any, str] = (
    forward_ad if hasattr(forward_ad, "_current_level") else SimpleNamespace(_current_level=-1),
    "_current_level",
)

QUESTIONS = deterministic, tracing, dispatch_modes, any_autocast
"""Checks that hold where more is asked for than the result of a call: deterministic algorithms, a tracer or a mode that
wants to see it, autocast that casts its operands. A transform of torch.func has tensors without memory."""


def intercepted() -> bool:
    """Whether something asks for more than the result of a call: one of ``QUESTIONS``, forward-mode differentiation, a
    transform."""
    return any(question() for question in QUESTIONS) or getattr(*LEVEL) >= 0 or transform() is not None
