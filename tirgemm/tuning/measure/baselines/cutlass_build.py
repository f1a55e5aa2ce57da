"""CUTLASS's device templates as shared libraries: headers of the package ``nvidia-cutlass``, compiled by nvcc on the
host.

The package (``cutlass_library`` as Python names it) is found where it is installed, or on PYTHONPATH; nothing of it is
imported. A library is compiled once for each template and dtype, and kept in the user's cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from tirgemm._user_folders import user_cache
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable

PACKAGE = "cutlass_library"
SOURCE = Path(__file__).with_name("cutlass_gemm.cu")
_FLAGS = ("-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr")
# A template takes ten seconds on one core; the measuring process must give a sign of life every minute.
_COMPILE_S = 50.0


class DoesNotCompile(Exception):
    """nvcc refused a template; the text is its first error."""


def headers() -> Path:
    """CUTLASS's include folder. Raises BaselineUnavailable."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        include = folder / "source" / "include"
        if (include / "cutlass" / "cutlass.h").is_file():
            return include
    raise BaselineUnavailable(
        f"CUTLASS's headers were not found in a Python package {PACKAGE}: pip install nvidia-cutlass, or put it on "
        f"PYTHONPATH"
    )


def compiler() -> str:
    """nvcc's path. Raises BaselineUnavailable."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=os.environ.get("CUDA_PATH", "/usr/local/cuda") + "/bin")
    if nvcc is None:
        raise BaselineUnavailable(
            "CUTLASS is compiled by nvcc, which was not found on PATH, in CUDA_PATH or in /usr/local/cuda"
        )
    return nvcc


def libraries(arch: str, templates: list[dict[str, str]], folder: Path | None = None) -> list[Path | DoesNotCompile]:
    """The shared library of every template (its macros), compiled side by side; where nvcc refused, what it said.

    ``folder``: where libraries are kept. Raises BaselineUnavailable where there are no headers or there is no nvcc.
    """
    include, nvcc = headers(), compiler()
    target = folder or user_cache() / "cutlass"
    target.mkdir(parents=True, exist_ok=True)
    version = _version(nvcc) + (include / "cutlass" / "version.h").read_text()

    def one(macros: dict[str, str]) -> Path | DoesNotCompile:
        flags = (*_FLAGS, f"-arch={arch}", *(f"-D{name}={value}" for name, value in macros.items()))
        key = hashlib.sha256("\0".join((SOURCE.read_text(), version, *flags)).encode()).hexdigest()
        path = target / f"{key}.so"
        try:
            return path if path.is_file() else _compile(nvcc, flags, include, path)
        except DoesNotCompile as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, min(len(templates), len(os.sched_getaffinity(0))))) as pool:
        return list(pool.map(one, templates))


@lru_cache(maxsize=64)
def loaded(path: Path) -> Any:
    """The library's functions with their signatures."""
    library = ctypes.CDLL(str(path))
    integer, pointer, long = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    library.cutlass_gemm.argtypes = [integer] * 4 + [pointer] * 4 + [long] * 8 + [ctypes.c_float, pointer]
    library.cutlass_gemm.restype = integer
    library.cutlass_words.argtypes = [integer]
    library.cutlass_words.restype = ctypes.c_char_p
    return library


@lru_cache(maxsize=4)
def _version(nvcc: str) -> str:
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout


def _compile(nvcc: str, flags: tuple[str, ...], include: Path, path: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="tirgemm-cutlass-", dir=path.parent) as folder:
        built = Path(folder, "gemm.so")
        command = [nvcc, *flags, f"-I{include}", "-o", str(built), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_S)
        except subprocess.TimeoutExpired as error:
            raise DoesNotCompile(f"nvcc took more than {_COMPILE_S:g} s") from error
        if done.returncode:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines()]
            raise DoesNotCompile(next((line for line in lines if "error" in line), lines[0] if lines else "no words"))
        built.replace(path)
    return path
