"""The build process: ``python -m tirgemm.tuning.build.child``. Imports TVM once, then compiles what it is sent."""

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
from tirgemm.families import Registration, register_registered
from tirgemm.gemm import Gemm
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.child_rpc import Channel, serve, without_torch
from tirgemm.tuning.process.locks import DeviceLock

# With the families that the parent has registered.
BuildRequest = tuple[Gemm, Config, Device, tuple[Registration, ...]]

# Builds leave the processor to what measures, which queues a GPU's work in time or spoils its samples.
_NICE = 5


def _prepare(channel: Channel, arguments: list[str]) -> Callable[[BuildRequest], Any]:
    """``arguments``: the builder as ``module:function``, the key and the folder of the lock (both empty for none)."""
    target, lock_key, lock_dir = arguments
    os.nice(_NICE)
    without_torch()
    module, _, function = target.partition(":")
    with _quiet(channel, lock_key, lock_dir):
        build = getattr(importlib.import_module(module), function)
        if module.startswith("tirgemm."):
            # What the builder imports late, and in seconds: now, rather than within the first build.
            importlib.import_module("tvm")

    def handle(request: BuildRequest) -> Any:
        with _quiet(channel, lock_key, lock_dir):
            channel.alive()
            *task, registrations = request
            try:
                register_registered(registrations)
                with spans.span("compile"):
                    return build(*task)
            except TirgemmError as error:
                raise error if isinstance(error, BuildFailed) else BuildFailed(str(error)) from error
            except Exception as error:
                raise BuildFailed(f"{type(error).__name__}: {error}") from error

    return handle


def _quiet(channel: Channel, lock_key: str, lock_dir: str) -> AbstractContextManager[object]:
    """While the block runs nothing is measured on this CPU; no lock where the device is a GPU."""
    if not lock_key:
        return contextlib.nullcontext()
    return DeviceLock(lock_key, Path(lock_dir), shared=True, on_wait=channel.waiting)


if __name__ == "__main__":
    serve(_prepare)
