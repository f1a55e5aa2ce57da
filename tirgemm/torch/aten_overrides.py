"""Overrides of PyTorch's ATen operators ``mm``, ``addmm``, ``bmm`` and ``baddbmm`` on the CPU and CUDA.

Registered through ``torch.library``, an override calls the thread's handler, which returns the product or declines;
where it declines, or none is set, PyTorch's own kernel runs. Overrides lie below autograd, autocast and every dispatch
mode: they see plain tensors, and gradients are PyTorch's. They are installed once a process and stay: removing them
while another thread is inside would crash that thread.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tirgemm.artifact.private_torch import untraced
from tirgemm.errors import InvalidRequest

# The operators by their names in aten, with the overload.
OPERATORS = (
    "mm",
    "mm.out",
    "addmm",
    "addmm.out",
    "addmm_",
    "bmm",
    "bmm.out",
    "baddbmm",
    "baddbmm.out",
    "baddbmm_",
)
KEYS = ("CPU", "CUDA")


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A call of one of OPERATORS: ``out = beta * c + alpha * a @ b``; ``out`` is None where PyTorch makes it."""

    operator: str
    a: Tensor
    b: Tensor
    c: Tensor | None
    alpha: float
    beta: float
    out: Tensor | None
    in_place: bool


Handler: TypeAlias = Callable[[ProductCall], "Tensor | None"]
"""Computes a call, or answers None for one that PyTorch is to compute."""

HANDLER: ContextVar[Handler | None] = ContextVar("tirgemm_routed", default=None)
"""What sees the calls of this thread (and asyncio task)."""
_lock = threading.Lock()
_installed: list[Any] = []


@untraced
def install() -> None:
    """Override the operators; does nothing where they are. Raises InvalidRequest for a PyTorch that is too old."""
    with _lock:
        if _installed:
            return
        if not hasattr(torch.library, "get_kernel"):
            raise InvalidRequest(
                f"routed needs torch.library.get_kernel, which PyTorch {torch.__version__} does not have; use "
                "tirgemm.torch.accelerate, or a newer PyTorch"
            )
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are overridden, which is what is meant
            for key in KEYS:
                if key == "CPU" or torch.cuda.is_available():
                    for operator in OPERATORS:
                        library.impl(operator, _override(operator, key), key, with_keyset=True)
        _installed.append(library)


def _override(operator: str, key: str) -> Callable[..., Tensor]:
    """The function that stands for ``operator``: PyTorch's own where no handler is set or it declines."""
    original = torch.library.get_kernel(f"aten::{operator}", key)
    adds = operator.startswith(("addmm", "baddbmm"))
    in_place = operator.endswith("_")
    name = operator.partition(".")[0]

    @untraced
    def override(keyset: Any, *args: Any, **more: Any) -> Tensor:
        handler = HANDLER.get()
        if handler is not None:
            c, a, b = args[:3] if adds else (None, *args[:2])
            call = ProductCall(name, a, b, c, more.get("alpha", 1), more.get("beta", 1), more.get("out"), in_place)
            token = HANDLER.set(None)  # what the handler itself multiplies is no call of the user's
            try:
                result = handler(call)
            finally:
                HANDLER.reset(token)
            if result is not None:
                return result
        computed: Tensor = original.call_boxed(keyset, *args, **more)
        return computed

    return override
