"""tirgemm: the fastest half-precision matrix multiply for your shape on your device.

Importing this package imports neither TVM nor the tuner: what needs them is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tirgemm._version import __version__
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import TirgemmError
from tirgemm.gemm import Gemm, Range

if TYPE_CHECKING:
    from tirgemm.artifact import load
    from tirgemm.client import Client
    from tirgemm.detect import devices
    from tirgemm.tuning.budget import Budget
    from tirgemm.tuning_db.dependent_kernels import DependentKernels
    from tirgemm.tuning_db.local_kernels import LocalKernels
    from tirgemm.tuning_db.tune import tune

__all__ = [
    "Budget",
    "Client",
    "Config",
    "DependentKernels",
    "Device",
    "Gemm",
    "LocalKernels",
    "Range",
    "TirgemmError",
    "__version__",
    "devices",
    "load",
    "tune",
]

_LAZY = {
    "Budget": "tirgemm.tuning.budget",
    "Client": "tirgemm.client",
    "DependentKernels": "tirgemm.tuning_db.dependent_kernels",
    "LocalKernels": "tirgemm.tuning_db.local_kernels",
    "devices": "tirgemm.detect",
    "load": "tirgemm.artifact",
    "tune": "tirgemm.tuning_db.tune",
}
# What a name needs before it is of any use, beyond what its module imports.
_EXTRAS = {"tune": "tune", "DependentKernels": "tune", "LocalKernels": "tune"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tirgemm' has no attribute {name!r}")
    from importlib import import_module

    from tirgemm._extras import needed_by, require

    if name in _EXTRAS:
        require(f"tirgemm.{name}", _EXTRAS[name])
    with needed_by(f"tirgemm.{name}"):
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """The public names, those that are loaded at first use among them."""
    return list(__all__)
