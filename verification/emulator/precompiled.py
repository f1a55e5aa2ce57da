"""Precompiled headers of the emulators, and what all kernels share: half of what g++ takes for a kernel."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder_of(header: Path, compiler: tuple[str, ...]) -> Path:
    """A folder with ``header`` precompiled by ``compiler``, to be searched first; it lives as long as this process.

    g++ takes it where a source is compiled by the same options, and reads the header itself anywhere else.
    """
    folder = _temporary(header)
    at = str(folder / f"{header.name}.gch")
    subprocess.run([*compiler, f"-I{header.parent}", "-x", "c++-header", str(header), "-o", at], check=True)
    return folder


@cache
def object_of(source: Path, compiler: tuple[str, ...]) -> Path:
    """``source`` compiled by ``compiler``, to be linked with kernels; it lives as long as this process."""
    made = _temporary(source) / f"{source.stem}.o"
    subprocess.run([*compiler, "-c", str(source), "-o", str(made)], check=True)
    return made


def _temporary(file: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"{file.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
