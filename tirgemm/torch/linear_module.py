"""``Linear``: ``torch.nn.Linear`` whose products are computed by the kernels of the table."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tirgemm.artifact.private_torch import apply_linear, load_linear
from tirgemm.errors import InvalidRequest, check_flags
from tirgemm.torch.linear_call import activation, linear
from tirgemm.torch.linear_operator import packed_linear
from tirgemm.torch.packed_weight import PACKED_WEIGHTS
from tirgemm.torch.served_calls import SERVED

_OWN = ("_act", "_prepack", "_invariant", "_dependent_launch")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_is_scripting = torch.jit.is_scripting


class Linear(nn.Linear):  # type: ignore[misc]  # types are checked where PyTorch is not installed
    """A drop-in for ``torch.nn.Linear``: ``act(x @ weight.T + bias)`` for x of any leading dimensions.

    Its parameters, their names and its state_dict are those of ``torch.nn.Linear``. ``act`` is an activation of a Gemm.
    ``prepack`` keeps, on a CPU, the weight in the order in which a kernel reads it, in fp32 beside the parameter; it is
    packed again when the parameter is replaced or changed in place, under torch.compile and torch.export too. Changes
    that PyTorch does not count, such as those through ``weight.data`` or a NumPy array of the same memory, are seen
    only where they change one of 16 elements that are compared at each call: call ``repack`` then. ``invariant`` is as
    that of ``linear``.
    """

    # For TorchScript.
    __constants__ = ["in_features", "out_features", "_act"]
    __jit_ignored_attributes__ = ["_prepack", "_invariant", "_dependent_launch"]
    __jit_unused_properties__ = ["act", "invariant", "dependent_launch", "packed_bytes"]

    _act: str = "none"
    _prepack: bool = False
    _invariant: bool = False
    _dependent_launch: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        act: str = "none",
        prepack: bool = False,
        invariant: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        activation(act)
        check_flags(prepack=prepack, invariant=invariant)
        self._act = act
        self._prepack = prepack
        self._invariant = invariant

    @classmethod
    def of(
        cls,
        module: nn.Linear,
        *,
        act: str | None = None,
        prepack: bool | None = None,
        invariant: bool | None = None,
    ) -> Linear:
        """A Linear that shares the parameters of ``module``, and has what is not given of one that is a Linear.

        Raises InvalidRequest for what is no plain Linear: one whose weight or result is computed otherwise, as by
        ``parametrize``, a ``forward`` of its own or hooks.
        """
        _require_plain(module)
        act = _setting(module, "_act") if act is None else act
        prepack = _setting(module, "_prepack") if prepack is None else prepack
        invariant = _setting(module, "_invariant") if invariant is None else invariant
        shared = cls.__new__(cls)
        nn.Module.__init__(shared)
        shared.in_features, shared.out_features = module.in_features, module.out_features
        shared.register_parameter("weight", module.weight)
        shared.register_parameter("bias", module.bias)
        shared.training = module.training
        activation(act)
        check_flags(prepack=prepack, invariant=invariant)
        shared._act = act
        shared._prepack = prepack
        shared._invariant = invariant
        shared._dependent_launch = _setting(module, "_dependent_launch")
        return shared

    @property
    def act(self) -> str:
        """The activation."""
        act: str = _setting(self, "_act")
        return act

    @property
    def invariant(self) -> bool:
        """Whether only kernels compute it that give a row the same bits in every batch."""
        return bool(_setting(self, "_invariant"))

    @property
    def dependent_launch(self) -> bool:
        """Whether only kernels for programmatic dependent launch compute it, as ``accelerate`` may ask for."""
        return bool(_setting(self, "_dependent_launch"))

    @property
    def packed_bytes(self) -> int:
        """Bytes that packed copies of the weight take now."""
        return PACKED_WEIGHTS.nbytes(self._parameters.get("weight")) if _setting(self, "_prepack") else 0

    def repack(self) -> None:
        """Forget the packed weight: it is packed again at the next call."""
        PACKED_WEIGHTS.forget(self._parameters.get("weight"))

    def forward(self, input: Tensor) -> Tensor:
        """``act(input @ weight.T + bias)``: (..., in_features) to (..., out_features)."""
        if _is_scripting():  # TorchScript reads no further
            return _scripted(input, self.weight, self.bias, self._act)
        # Another thread may undo ``accelerate`` meanwhile: then these are gone.
        prepack, act = getattr(self, "_prepack", False), getattr(self, "_act", "none")
        invariant, dependent = getattr(self, "_invariant", False), getattr(self, "_dependent_launch", False)
        # As self.weight and self.bias, without a call in Python for each.
        own = self._parameters
        weight, bias = (own["weight"], own["bias"]) if "weight" in own and "bias" in own else (self.weight, self.bias)
        if prepack:
            return packed_linear(input, weight, bias, act, invariant, dependent)
        return linear(input, weight, bias, act, invariant, dependent)

    # Below PyTorch's methods by name, not by ``super()``: another thread may undo ``accelerate`` meanwhile, and then
    # ``self`` is no Linear any more.

    def extra_repr(self) -> str:
        """As that of ``torch.nn.Linear``, with the activation where there is one."""
        act = _setting(self, "_act")
        shown = [nn.Linear.extra_repr(self), *([f"act={act}"] if act != "none" else [])]
        shown += [f"{name}=True" for name in ("invariant", "dependent_launch") if _setting(self, f"_{name}")]
        return ", ".join(shown)

    def _apply(self, fn: Any, recurse: bool = True) -> Linear:
        """As that of a module, by which it is moved and cast; PyTorch may swap parameters then, and when it loads."""
        _forget(self)
        applied: Linear = apply_linear(self, fn, recurse)
        return applied

    def _load_from_state_dict(self, *given: Any, **more: Any) -> None:
        _forget(self)
        load_linear(self, *given, **more)


def _setting(module: nn.Linear, name: str) -> Any:
    """What a Linear has of ``_OWN``, or the default of one that is being given back by another thread."""
    return getattr(module, name, getattr(Linear, name))


def _forget(module: nn.Linear) -> None:
    """Forget what is kept of calls with the parameters, and what is packed, so that PyTorch may swap them."""
    SERVED.forget(*module._parameters.values())
    PACKED_WEIGHTS.forget(module._parameters.get("weight"))


def _require_plain(module: nn.Linear) -> None:
    if not isinstance(module, nn.Linear):
        raise InvalidRequest(f"module is {_shown(module)}; give a torch.nn.Linear")
    fault = ""
    if any(name not in module._parameters for name in ("weight", "bias")):
        fault = "its weight or bias is no parameter of its own, but computed (a parametrization, say)"
    elif nn.parameter.is_lazy(module.weight):
        fault = "its weight is made at its first call"
    elif type(module).forward not in (nn.Linear.forward, Linear.forward):
        fault = "its class computes something else, or otherwise"
    elif "forward" in module.__dict__:
        fault = "its forward was replaced"
    elif any(getattr(module, hooks) for hooks in _HOOKS):
        fault = "it has hooks, which another module would not call"
    if fault:
        raise InvalidRequest(f"module is {_shown(module)}: {fault}; give a plain torch.nn.Linear")


def _shown(module: object) -> str:
    return f"{type(module).__name__} {module!r:.80}" if isinstance(module, nn.Module) else f"{module!r:.80}"


def _scripted(x: Tensor, weight: Tensor, bias: Tensor | None, act: str) -> Tensor:
    """``linear`` by PyTorch, in TorchScript."""
    y = functional.linear(x, weight, bias)
    if act == "relu":
        y = functional.relu(y)
    elif act == "gelu":
        y = functional.gelu(y)
    elif act == "gelu_tanh":
        y = functional.gelu(y, approximate="tanh")
    elif act == "silu":
        y = functional.silu(y)
    return y


def convert_to_kernel_linear(
    module: nn.Linear, *, prepack: bool, invariant: bool = False, dependent_launch: bool = False
) -> None:
    """Make ``module`` itself a Linear, so that whoever holds it, its hooks and its parameters stay as they are."""
    own: Any = module
    own._prepack = prepack
    own._invariant = invariant
    own._dependent_launch = dependent_launch
    module.__class__ = Linear  # last: another thread may call it


def restore_linear(module: nn.Linear) -> None:
    """Make ``module`` a ``torch.nn.Linear`` again. One whose class was derived from Linear since, as ``parametrize``
    does, keeps what was added."""
    module.__class__ = _restored(type(module))
    for name in _OWN:
        module.__dict__.pop(name, None)
    _forget(module)


def _restored(cls: type) -> type:
    """The class with ``torch.nn.Linear`` in the place of ours, wherever it was derived from that. One whose methods
    call ``super()`` cannot be made anew, for these name it: it stays derived from ours, without its settings."""
    if Linear not in cls.__mro__:
        return cls
    if cls is Linear:
        plain: type = nn.Linear
        return plain
    codes = (getattr(inspect.unwrap(value), "__code__", None) for value in vars(cls).values())
    if any("__class__" in code.co_freevars for code in codes if code is not None):
        return cls
    bases = tuple(_restored(base) for base in cls.__bases__)
    added = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    return type(cls)(cls.__name__, bases, added)


def use_kernels(module: nn.Linear, ours: bool) -> None:
    """Have ``torch.nn.Linear`` compute a module that became a Linear, or kernels again, which then has all it had."""
    module.__class__ = Linear if ours else nn.Linear
