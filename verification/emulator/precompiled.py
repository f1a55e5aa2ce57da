"""Precompiled headers of the emulators: half of what g++ takes for a kernel."""

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
    folder = Path(tempfile.mkdtemp(prefix=f"{header.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    at = str(folder / f"{header.name}.gch")
    subprocess.run([*compiler, f"-I{header.parent}", "-x", "c++-header", str(header), "-o", at], check=True)
    return folder
