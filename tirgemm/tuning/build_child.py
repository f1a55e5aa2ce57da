"""The build process: ``python -m tirgemm.tuning.build_child``. Imports TVM once, then compiles what it is sent."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.tuning.child_process import Channel, serve, without_torch
from tirgemm.tuning.locks import DeviceLock

Request = tuple[Gemm, Config, Device]

# Builds leave the processor to what measures, which queues a GPU's work in time or spoils its samples.
_NICE = 5


def _prepare(channel: Channel, arguments: list[str]) -> Callable[[Request], Any]:
    """``arguments``: the builder as ``module:function``, the key and the folder of the lock (both empty for none)."""
    target, lock_key, lock_dir = arguments
    os.nice(_NICE)
    without_torch()
    module, _, function = target.partition(":")
    with _quiet(lock_key, lock_dir):
        build = getattr(importlib.import_module(module), function)
        if module.startswith("tirgemm."):
            # What the builder imports late, and in seconds: now, rather than within the first build.
            importlib.import_module("tvm")

    def handle(request: Request) -> Any:
        with _quiet(lock_key, lock_dir):
            channel.alive()
            try:
                return build(*request)
            except TirgemmError as error:
                raise error if isinstance(error, BuildFailed) else BuildFailed(str(error)) from error
            except Exception as error:
                raise BuildFailed(f"{type(error).__name__}: {error}") from error

    return handle


def _quiet(lock_key: str, lock_dir: str) -> AbstractContextManager[object]:
    """While the block runs nothing is measured on this CPU; no lock where the device is a GPU."""
    return DeviceLock(lock_key, Path(lock_dir), shared=True) if lock_key else contextlib.nullcontext()


if __name__ == "__main__":
    serve(_prepare)
