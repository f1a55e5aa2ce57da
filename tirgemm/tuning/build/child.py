"""The build process: ``python -m tirgemm.tuning.build.child``. Imports TVM once, then compiles what it is sent."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildersUnusable, BuildFailed, MissingExtra, TirgemmError
from tirgemm.families import Registration, register_registered, supporting
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.child_rpc import Channel, serve, without_torch
from tirgemm.tuning.process.locks import DeviceLock

# With the families that the parent has registered.
BuildRequest = tuple[Gemm, Config, Device, tuple[Registration, ...]]

# What is built where nothing is asked for yet: rows of no whole 16 bytes, whose default has a kernel that copies them.
REHEARSED = Gemm(1023, 1021, 1027)

# Builds leave the processor to what measures, which queues a GPU's work in time or spoils its samples.
_NICE = 5


def _prepare(channel: Channel, arguments: list[str]) -> Callable[[BuildRequest], Any]:
    """``arguments``: the builder as ``module:function``, the key and the folder of the lock (both empty for none), and
    the JSON of the GPU for which a build is rehearsed (empty for none)."""
    target, lock_key, lock_dir, rehearsed = arguments
    os.nice(_NICE)
    without_torch()
    module, _, function = target.partition(":")
    with _quiet(channel, lock_key, lock_dir):
        build = getattr(importlib.import_module(module), function)
        if module.startswith("tirgemm."):
            # What the builder imports late, and in seconds: now, rather than within the first build.
            importlib.import_module("tvm")
        if rehearsed and not channel.has_request:
            _rehearse(build, Device.from_json(json.loads(rehearsed)))

    def handle(request: BuildRequest) -> Any:
        with _quiet(channel, lock_key, lock_dir):
            channel.alive()
            *task, registrations = request
            try:
                register_registered(registrations)
                with spans.span("compile"):
                    return build(*task)
            except (MissingExtra, OSError, MemoryError) as error:
                raise BuildersUnusable(f"this machine cannot build: {error}") from error
            except TirgemmError as error:
                raise error if isinstance(error, BuildFailed) else BuildFailed(str(error)) from error
            except Exception as error:
                raise BuildFailed(f"{type(error).__name__}: {error}") from error

    return handle


def _rehearse(build: Callable[[Gemm, Config, Device], Any], device: Device) -> None:
    """Build a kernel with everything that a first build loads, parses and makes, and forget it: one that is asked for
    later takes a tenth of a second less."""
    with contextlib.suppress(Exception):
        _, config = ranked_defaults(supporting(REHEARSED, device), REHEARSED, device, REGIMES[0])[0]
        build(REHEARSED, config, device)


def _quiet(channel: Channel, lock_key: str, lock_dir: str) -> AbstractContextManager[object]:
    """While the block runs nothing is measured on this CPU; no lock where the device is a GPU."""
    if not lock_key:
        return contextlib.nullcontext()
    return DeviceLock(lock_key, Path(lock_dir), shared=True, on_wait=channel.waiting)


if __name__ == "__main__":
    serve(_prepare)
