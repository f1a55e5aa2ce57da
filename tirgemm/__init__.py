"""tirgemm: the fastest half-precision matrix multiply for your shape on your GPU.

Importing this package imports neither TVM nor the tuner: what needs them is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import TirgemmError
from tirgemm.gemm import Gemm, Range

if TYPE_CHECKING:
    from tirgemm.artifact import load
    from tirgemm.client import Client
    from tirgemm.detect import devices
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning.tune import tune

__all__ = [
    "Budget", "Client", "Config", "Device", "Gemm", "Range", "TirgemmError", "devices", "load", "tune",
]  # fmt: skip

__version__ = "0.1.0"

_LAZY = {
    "Budget": "tirgemm.tuning.budget",
    "Client": "tirgemm.client",
    "devices": "tirgemm.detect",
    "load": "tirgemm.artifact",
    "tune": "tirgemm.tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tirgemm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
