"""The native launcher from Python: one function per entry of ``module.cc``.

tvm_ffi is imported at first use, so that reading artifacts does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tirgemm import errors

LIBRARY = Path(__file__).parent.parent / "_launcher.so"

_ERRORS = (
    errors.CallError,
    errors.CallTypeError,
    errors.CorruptArtifact,
    errors.IncompatibleArtifact,
    errors.DeviceUnavailable,
    errors.LaunchFailed,
)


@cache
def library() -> Any:
    """The launcher's module. Raises MissingExtra where it was not built or tvm_ffi is not installed."""
    ffi = tvm_ffi()
    if not LIBRARY.is_file():
        raise errors.MissingExtra(
            f"the native launcher {LIBRARY.name} is not built: install tirgemm again, or run "
            "'python -m tirgemm.artifact.build' (it needs g++)"
        )
    # The launcher raises these kinds; tvm_ffi turns them into the classes of that name.
    for error in _ERRORS:
        ffi.register_error(f"tirgemm.{error.__name__}", error)
    return ffi.load_module(str(LIBRARY))


@cache
def tvm_ffi() -> Any:
    """The tvm_ffi module. Raises MissingExtra."""
    try:
        import tvm_ffi as module
    except ImportError as error:
        raise errors.MissingExtra(
            "running kernels needs apache-tvm-ffi, which is not installed: pip install 'tirgemm[client]'"
        ) from error
    return module


@dataclass(frozen=True, slots=True)
class Loaded:
    """Kernels in the launcher: ``call`` takes tensors and scalars and runs the one that serves their m, ``close``
    unloads all of them from the GPU, ``member`` says for an m which one runs (-1: none)."""

    call: Callable[..., None]
    close: Callable[[], None]
    member: Callable[[int], int]


def load(binaries: Sequence[bytes], kernels: Sequence[str]) -> Loaded:
    """Load binaries by the manifest's ``kernel`` parts (as JSON), whose ranges of m follow one another.

    Raises CorruptArtifact and IncompatibleArtifact. A cubin goes to the driver at the first call on each device that
    runs it.
    """
    return Loaded(*library()["load"](list(binaries), list(kernels)))


def host_threads() -> int:
    """Threads that CPU kernels run on: this process's affinity, capped by its cgroup's quota."""
    return int(library()["host_threads"]())


def cuda_architectures() -> tuple[int, ...]:
    """90 for sm_90, for each CUDA device of this machine; empty without a driver."""
    return tuple(int(arch) for arch in library()["cuda_architectures"]())


def arch_runs_on(arch: str, device: int) -> bool:
    """Whether machine code for ``arch`` (``sm_90a``) runs on a device of architecture ``device`` (90)."""
    return bool(library()["arch_runs_on"](arch, device))


def reinterpret(tensor: Any, dtype: str) -> Any:
    """The memory of a tvm_ffi Tensor under another dtype of the same size."""
    return library()["reinterpret"](tensor, dtype)
