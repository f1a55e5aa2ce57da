"""Wrappers of PyTorch's private functions, with what is called instead where the installed PyTorch lacks one.

That is the public function of the same meaning, if there is one; it is slower. No other module calls private functions
of PyTorch. They were tried with PyTorch 2.13 on CPUs and 2.11 on an H200. ``__dlpack_c_exchange_api__``, which
``tensor_calls`` reads, is none: it is DLPack's, for whoever takes tensors. PyTorch is imported here: import this module
where one of its tensors is seen, or in ``tirgemm.torch``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd import forward_ad

# A question, and one that decides where the first is answered by something true, or None.
ModeQuestion: TypeAlias = "tuple[Callable[[], Any], Callable[[], Any] | None]"


def _class(module: str, name: str) -> tuple[type, ...]:
    """The class, or none, as ``isinstance`` takes them."""
    try:
        return (getattr(import_module(module), name),)
    except (ImportError, AttributeError):
        return ()


def _address(library: str, symbol: str) -> int | None:
    """Where a function of one of PyTorch's libraries lies, or None."""
    try:
        function = getattr(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library)), symbol)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _function(owner: Any, name: str, absent: Callable[[], Any]) -> Callable[[], Any]:
    function: Callable[[], Any] = getattr(owner, name, absent)
    return function


# How many TorchDispatchModes are active in this thread: a fake mode, a FLOP counter. There is no public way to ask.
dispatch_modes = _function(torch._C, "_len_torch_dispatch_stack", lambda: 0)
# The innermost transform of torch.func (vmap, grad, functionalize), or None, and the class of transforms: dynamo, which
# traces the question, knows nothing else of the answer. There is no public way to ask.
_innermost = _function(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)
_TRANSFORM = _class("torch._C._functorch", "CInterpreter")
# Whether autocast is on for any device; the public torch.is_autocast_enabled takes a device type, and three times as
# long.
any_autocast = _function(
    torch._C, "_is_any_autocast_enabled", lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
)
# As torch.are_deterministic_algorithms_enabled, without a call in Python.
deterministic = _function(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled)


# As torch.jit.is_tracing, without a call in Python.
tracing = _function(torch._C, "_is_tracing", torch.jit.is_tracing)
# How many TorchFunctionModes are active in this thread, and which they are; make_fx with pre_dispatch has one, too.
# There is no public way to ask.
function_modes = _function(torch._C, "_len_torch_function_stack", lambda: 0)
_function_mode: Callable[[int], Any] = getattr(torch._C, "_get_function_stack_at", lambda _index: None)
# What torch.set_default_device and ``with torch.device(...)`` are, which look at nothing but where tensors are made.
_DEVICE_MODE = _class("torch.utils._device", "DeviceContext")


def transformed() -> bool:
    """Whether the call is within a transform of torch.func."""
    return isinstance(_innermost(), _TRANSFORM)


def watched() -> bool:
    """Whether a TorchFunctionMode wants to see what is called."""
    return any(not isinstance(_function_mode(index), _DEVICE_MODE) for index in range(function_modes()))


# What a module that is moved, cast or loaded calls, and a subclass extends. There is no public way to do so.
def apply_linear(module: nn.Linear, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> Any:
    """``torch.nn.Linear``'s own ``_apply``, whatever the class of the module is now."""
    return nn.Linear._apply(module, fn, recurse)


def load_linear(module: nn.Linear, *given: Any, **more: Any) -> None:
    """``torch.nn.Linear``'s own ``_load_from_state_dict``, as above."""
    nn.Linear._load_from_state_dict(module, *given, **more)


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

# What stands for a plain tensor, or a parameter, while torch.export traces without dynamo.
FAKE_TENSORS: tuple[type, ...] = _class("torch._subclasses.fake_tensor", "FakeTensor")


def redispatch_below_autograd(operator: Any, keys: Any, *args: Any, **more: Any) -> Any:
    """What a kernel of autograd does that has nothing to record: call ``operator`` as the dispatcher would after it."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *args, **more)


_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of which dynamo compiles nothing, nor of what it calls. As torch.compiler.disable, which imports
    dynamo (two seconds) and adds calls to each."""
    if not (hasattr(_frames, "set_code_exec_strategy") and hasattr(_frames, "_FrameExecStrategy")):
        disable: Callable[..., Callable[..., Any]] = getattr(torch, "_disable_dynamo", torch.compiler.disable)
        return disable(function)
    skip = _frames._FrameAction.SKIP
    _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))
    return function


class CompiledRun:
    """A run of a graph that torch.compile made. It lives until the run is over."""

    __slots__ = ("__weakref__",)


def compiled_run() -> CompiledRun | None:
    """The outermost such run in which this thread is; None without one.

    There is no public way to ask: it is kept as a local variable of the outermost function of AOTAutograd or Inductor
    that is being executed, and goes with it.
    """
    frame: FrameType | None = sys._getframe()
    outermost = None
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(("torch._functorch.", "torch._inductor.")):
            outermost = frame
        frame = frame.f_back
    if outermost is None:
        return None
    run: CompiledRun = outermost.f_locals.setdefault("_tirgemm_run", CompiledRun())
    return run


TRACERS: tuple[ModeQuestion, ...] = ((tracing, None), (dispatch_modes, None))
"""Checks that hold where a tracer or a mode wants to see what runs: of a kernel that is called directly it sees
nothing."""

NATIVE_TRACERS = (
    _address("libc10.so", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"),
    _address("libtorch_cpu.so", "_ZN5torch3jit6tracer15getTracingStateEv"),
)
"""Functions of PyTorch's C++ libraries without arguments that answer ``TRACERS`` in a tenth of the time: the number of
modes, and a reference to a pointer that is null without a tracer. ``TRACERS`` are asked where one is None. Tried with
PyTorch 2.13 on CPUs."""

QUESTIONS: tuple[ModeQuestion, ...] = (*TRACERS, (deterministic, None), (any_autocast, None), (function_modes, watched))
"""Checks that hold where more is asked for than the result of a call: ``TRACERS``, deterministic algorithms, autocast
that casts its operands, a mode that wants to see functions. Where there is a second one, the first is only quick. A
transform of torch.func has tensors without memory."""


def intercepted() -> bool:
    """Whether something asks for more than the result of a call: one of ``QUESTIONS``, forward-mode differentiation, a
    transform."""
    if any(first() and (second is None or second()) for first, second in QUESTIONS):
        return True
    return getattr(*LEVEL) >= 0 or transformed()


_UNSEEN = "which does not see a kernel that is called directly: call tirgemm.torch.matmul_op(kernel) instead"


def unseen(operands: Sequence[object]) -> str:
    """What of PyTorch would not see a kernel that is called directly with these, and what to do, or "": a tracer, a
    mode, a transform, or forward-mode differentiation of one of them."""
    if tracing():
        return f"the call is traced by torch.jit.trace, {_UNSEEN}"
    if dispatch_modes():
        return f"the call is within a TorchDispatchMode (make_fx, fake tensors, a FLOP counter), {_UNSEEN}"
    if transformed():
        return f"the call is within a transform of torch.func, {_UNSEEN}"
    if getattr(*LEVEL) >= 0:
        tensors = (each for each in operands if isinstance(each, torch.Tensor))
        if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
            return "the call is differentiated in forward mode, and a kernel has no derivative: detach its operands"
    return ""
