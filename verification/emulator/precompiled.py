"""Precompiled headers of the emulators, and what all kernels share: half of what g++ takes for a kernel."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path


def folder_of(header: Path, compiler: tuple[str, ...]) -> Path:
    """A folder with ``header`` precompiled by ``compiler``, to be searched first; it lives as long as this process.

    g++ takes it where a source is compiled by the same options, and reads the header itself anywhere else.
    """
    options = (f"-I{header.parent}", "-x", "c++-header")
    return made((*compiler, *options, str(header)), f"{header.name}.gch").parent


def object_of(source: Path, compiler: tuple[str, ...]) -> Path:
    """``source`` compiled by ``compiler``, to be linked with kernels; it lives as long as this process."""
    return made((*compiler, "-c", str(source)), f"{source.stem}.o")


def kernel_text(source: str) -> str:
    """CUDA source without what it begins with and the headers that it includes."""
    _, text = source.split("#include <cuda.h>\n#endif", 1)
    return text.replace("#include <cuda_fp16.h>", "").replace("#include <cuda_bf16.h>", "")


def compile_kernels(command: Sequence[str], model: Path, folder: Path) -> Path:
    """The library ``kernel.so`` of ``kernel.cc``, both in ``folder``, and ``model``. AssertionError where a compiler
    does not take it."""
    linked = [*command, "-shared", "-o", "kernel.so", "kernel.cc", str(model)]
    done = subprocess.run(linked, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:20000]
    return folder / "kernel.so"


@cache
def made(command: tuple[str, ...], name: str) -> Path:
    """The file ``name`` that ``command`` makes, in a folder of its own that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make(command, folder / name)


def make(command: tuple[str, ...], file: Path) -> Path:
    """Run a compiler, which writes ``file``. Raises CalledProcessError."""
    subprocess.run([*command, "-o", str(file)], check=True)
    return file
