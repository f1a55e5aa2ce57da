"""The native launcher from Python: one function per entry of ``module.cc``.

tvm_ffi is imported at first use, so that reading artifacts does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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


class LoadedFunctions(NamedTuple):
    """What the launcher gives for one kernel, or a set of them: functions of tensors by position.

    ``call`` takes tensors and scalars in the launch's order; ``call_rows`` too, with A and D of any rank, of which the
    dimensions before the last are taken as one; ``close`` unloads all code from the GPU;
    ``member`` is the index of the kernel that runs for an m, -1 for none. ``packed_bytes`` is how large B is once
    packed for the kernel of an index, 0 where it packs nothing from B alone; ``pack`` fills that many bytes (b, bytes,
    index), and ``call_packed`` takes them behind the arguments of ``call``, and packs no B: they must be those of the
    kernel that runs for the call's m. ``handle`` is the kernel's address, for as long as these functions live.
    """

    call: Callable[..., None]
    close: Callable[[], None]
    packed_bytes: Callable[[int], int]
    pack: Callable[[Any, Any, int], None]
    call_packed: Callable[..., None]
    member: Callable[[int], int]
    call_rows: Callable[..., None]
    handle: Callable[[], int]


def built_library() -> Path:
    """The launcher's file. Raises MissingExtra where it was not built."""
    if not LIBRARY.is_file():
        raise errors.MissingExtra(
            f"the native launcher {LIBRARY} is not built: install tirgemm again, or run "
            "'python -m tirgemm.artifact.build' (it needs g++)"
        )
    return LIBRARY


@cache
def library() -> Any:
    """The launcher's module. Raises MissingExtra where it was not built or tvm_ffi is not installed."""
    ffi, file = tvm_ffi(), built_library()
    # The launcher raises these kinds; tvm_ffi turns them into the classes of that name.
    for error in _ERRORS:
        ffi.register_error(f"tirgemm.{error.__name__}", error)
    return ffi.load_module(str(file))


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


def load(binaries: Sequence[bytes], kernels: Sequence[str], threads: int = 0) -> LoadedFunctions:
    """Load binaries by the manifest's ``kernel`` parts (as JSON), whose ranges of m follow one another. ``threads`` is
    the most of a CPU; 0: no cap, -1: the environment's OMP_NUM_THREADS.

    Raises CorruptArtifact and IncompatibleArtifact. A cubin goes to the driver at the first call on each device that
    runs it.
    """
    return LoadedFunctions(*library()["load"](list(binaries), list(kernels), threads))


def host_threads() -> int:
    """Threads that CPU kernels run on: this process's affinity, capped by its cgroups' quotas."""
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
