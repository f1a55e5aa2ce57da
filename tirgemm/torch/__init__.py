"""tirgemm in PyTorch: models whose linears run on tuned kernels, drop-in functions and modules, and operators.

``accelerate(model)`` is the one line, ``restore(model)`` takes it back; ``linear``, ``Linear`` and ``matmul`` are what
it is made of, ``routed()`` sends PyTorch's own products through kernels, ``matmul_op`` makes an operator of one kernel.
Whatever no kernel serves, PyTorch computes.
"""

from __future__ import annotations

from tirgemm.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401 (its absence is told here, once)
except ImportError as missing:
    raise MissingExtra("tirgemm.torch needs PyTorch 2.6 or newer: see pytorch.org for how to install it") from missing

from tirgemm.torch.acceleration import Acceleration
from tirgemm.torch.conversion import accelerate, restore
from tirgemm.torch.linear_call import linear
from tirgemm.torch.linear_kernels import LinearReport
from tirgemm.torch.linear_module import Linear
from tirgemm.torch.operator import matmul_op, register, registered
from tirgemm.torch.product import matmul
from tirgemm.torch.routing import RoutedCalls, routed
from tirgemm.torch.service_kernels import ServiceKernels

__all__ = [
    "Acceleration",
    "Linear",
    "LinearReport",
    "RoutedCalls",
    "ServiceKernels",
    "accelerate",
    "linear",
    "matmul",
    "matmul_op",
    "register",
    "registered",
    "restore",
    "routed",
]
