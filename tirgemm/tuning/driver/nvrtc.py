"""CUDA C++ source to a cubin by NVRTC: no CUDA toolkit, no GPU, no TVM, no fast math."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tirgemm.errors import BuildersUnusable, BuildFailed, MissingExtra

# Compiler flags of every build, part of a kernel's key. Where the headers lie is the machine's business: not here.
BASE_FLAGS = ("-std=c++17", "-default-device", "--device-int128", "--fmad=true")

_FAST_MATH = ("use_fast_math", "ftz=true", "prec-div=false", "prec-sqrt=false")
_ELF_MAGIC = b"\x7fELF"
_EM_CUDA = 190


@dataclass(frozen=True, slots=True)
class PtxasResources:
    """What ptxas gave one kernel: registers a thread, bytes of stack, of spills (stores and loads), of static shared
    memory."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled source: the cubin, the flags as data, the compiler's words, and each kernel's resources by symbol."""

    data: bytes
    flags: tuple[str, ...]
    log: str
    resources: dict[str, PtxasResources]

    @property
    def serialised(self) -> bool:
        """Whether ptxas warns that it waits for one wgmma before it issues the next."""
        return _SERIALISED.search(self.log) is not None


def compile_source(source: str, arch: str, *, options: tuple[str, ...] = (), name: str = "kernel.cu") -> Cubin:
    """Compile ``source`` for ``arch`` (``sm_80``, ``sm_90a``, ...).

    ``options`` are added to BASE_FLAGS and recorded with them; ``name`` is what the compiler's messages call the
    source. Kernels must be ``extern "C"``. Raises BuildFailed with the compiler's words, MissingExtra without NVRTC.
    """
    for option in options:
        if any(word in option for word in _FAST_MATH):
            raise BuildFailed(
                f"compiler option {option!r} gives up accuracy; served kernels are built without fast math"
            )
    flags = (f"--gpu-architecture={arch}", *BASE_FLAGS, *options)
    # Verbose ptxas is how spills are learned: it changes no code, so it is not among the recorded flags. Where a driver
    # is present NVRTC answers from a cache of its own, without ptxas and its words, unless told not to.
    data, log = _compiled(source, name, (*flags, "--ptxas-options=-v", "--no-cache"), "CUBIN", f"for {arch}")
    require_cubin(data)
    return Cubin(data, flags, log, _resources(log))


def compile_again(source: str, flags: tuple[str, ...], name: str = "kernel.cu") -> bytes:
    """The cubin of ``source`` by the ``flags`` of a Cubin, and perhaps others. Raises BuildFailed with the compiler's
    words, MissingExtra without NVRTC."""
    data, _ = _compiled(source, name, (*flags, "--no-cache"), "CUBIN", "again")
    require_cubin(data)
    return data


def compile_ptx(source: str, flags: tuple[str, ...], name: str = "kernel.cu") -> str:
    """The PTX of ``source`` by the ``flags`` of a Cubin, for the virtual architecture of the one that they name.

    Raises BuildFailed with the compiler's words, MissingExtra without NVRTC.
    """
    virtual = tuple(flag.replace("--gpu-architecture=sm_", "--gpu-architecture=compute_") for flag in flags)
    data, _ = _compiled(source, name, (*virtual, "--no-cache"), "PTX", "to PTX")
    return data.rstrip(b"\0").decode()


def _compiled(source: str, name: str, flags: tuple[str, ...], what: str, goal: str) -> tuple[bytes, str]:
    """What NVRTC makes of ``source``, and the compiler's words."""
    nvrtc = _nvrtc()
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        arguments = [flag.encode() for flag in (*flags, *(f"-I{folder}" for folder in include_folders()))]
        status = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)[0]
        log = _text(nvrtc, "ProgramLog", program).rstrip(b"\0 \n").decode(errors="replace")
        if int(status):
            raise BuildFailed(f"NVRTC does not compile {name} {goal} ({status.name}):\n{log}")
        return _text(nvrtc, what, program), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def require_cubin(data: bytes) -> None:
    """Raise BuildFailed unless ``data`` is an ELF object for CUDA: never source, PTX or a host object in its place."""
    if data[:4] != _ELF_MAGIC or int.from_bytes(data[18:20], "little") != _EM_CUDA:
        raise BuildFailed(f"the compiler's output is not a cubin: it starts with {data[:16]!r}")


@lru_cache(maxsize=1)
def include_folders() -> tuple[str, ...]:
    """Where the CUDA headers lie: the CUDA wheels, else a toolkit at CUDA_PATH or /usr/local/cuda. Raises BuildFailed.

    Wheels may lack the C++ core libraries (PyTorch brings the runtime's headers without them): those are then taken
    from the next place that has them.
    """
    includes = [root / "include" for root in _roots()]
    runtime = next((i for i in includes if (i / "cuda_fp16.h").is_file()), None)
    core = next((i for i in includes if (i / "cccl" / "cuda" / "std").is_dir()), None)
    if runtime is None or core is None:
        raise BuildersUnusable(
            "the CUDA headers are missing: pip install 'tirgemm[cuda]' (nvidia-cuda-runtime and nvidia-cuda-cccl), "
            "or set CUDA_PATH to a toolkit"
        )
    return (str(runtime), str(core / "cccl"))


def nvrtc_version() -> str:
    """NVRTC's version, ``13.0`` say. Raises MissingExtra."""
    nvrtc = _nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}" if not int(status) else "unknown"


def _roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    roots = [folder for wheel in wheels for folder in sorted(wheel.glob("cu[0-9]*"), reverse=True)]
    if os.environ.get("CUDA_PATH"):
        roots.append(Path(os.environ["CUDA_PATH"]))
    return [*roots, Path("/usr/local/cuda")]


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # the library itself is loaded at the first call
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingExtra(f"compiling for a GPU needs NVRTC: pip install 'tirgemm[cuda]' ({error})") from error
    return nvrtc


def _check(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    if int(answer[0]):
        raise BuildFailed(f"NVRTC fails: {nvrtc.nvrtcGetErrorString(answer[0])[1].decode()}")
    return answer[1] if len(answer) > 1 else None


def _text(nvrtc: Any, what: str, program: Any) -> bytes:
    size = int(_check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
    buffer = bytearray(size)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return bytes(buffer)


# What ptxas warns of where it serialises wgmmas, one number for each reason.
_SERIALISED = re.compile(r"\(C751\d\)")
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def _resources(log: str) -> dict[str, PtxasResources]:
    """Each kernel's resources from ptxas's words; a kernel that it does not account for is a BuildFailed."""
    resources: dict[str, PtxasResources] = {}
    pieces = _ENTRY.split(log)
    for symbol, words in zip(pieces[1::2], pieces[2::2], strict=True):
        stack, used = _STACK.search(words), _USED.search(words)
        if not stack or not used:
            raise BuildFailed(f"ptxas does not say what kernel {symbol} uses:\n{log}")
        frame, stores, loads = (int(number) for number in stack.groups())
        resources[symbol] = PtxasResources(int(used[1]), frame, stores, loads, int(used[2] or 0))
    return resources
