"""nvdisasm as a function: a cubin in, text out. No GPU, no toolkit: it is a Python package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from tirgemm.errors import AnalysisFailed, MissingExtra

_SECONDS = 60
# Loads from and stores to local memory.
_LOCAL = re.compile(r"\b(LDL|STL)\b")


def disassembly(cubin: bytes) -> str:
    """What nvdisasm prints of the code in ``cubin``, with source lines where it has them.

    Raises MissingExtra without nvdisasm, AnalysisFailed with its words where it refuses.
    """
    with tempfile.TemporaryDirectory(prefix="tirgemm-sass-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        # Much of its time goes into following data, which tells nothing but which local accesses are spills.
        quick = _printed(file, "-ndf")
        return _printed(file) if _LOCAL.search(quick) else quick


def _printed(file: Path, *options: str) -> str:
    # Some versions refuse to print lines that are not there.
    for lines in (["-g"], []):
        done = subprocess.run(
            [nvdisasm(), "-c", *options, *lines, str(file)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            errors="replace",
        )
        if not done.returncode:
            return done.stdout
    raise AnalysisFailed(f"nvdisasm does not read {file.stat().st_size} bytes as a cubin: {done.stderr.strip()[-400:]}")


@lru_cache(maxsize=1)
def nvdisasm() -> str:
    """The path of nvdisasm: the wheel's, else a toolkit's at CUDA_PATH, on PATH or /usr/local/cuda. Raises
    MissingExtra."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    folders = [folder / "bin" for wheel in wheels for folder in sorted(wheel.glob("cu[0-9]*"), reverse=True)]
    if os.environ.get("CUDA_PATH"):
        folders.append(Path(os.environ["CUDA_PATH"]) / "bin")
    for folder in folders:
        if os.access(folder / "nvdisasm", os.X_OK):
            return str(folder / "nvdisasm")
    tool = shutil.which("nvdisasm") or shutil.which("nvdisasm", path="/usr/local/cuda/bin")
    if tool is None:
        raise MissingExtra("reading machine code needs nvdisasm: pip install 'tirgemm[cuda]' (nvidia-cuda-nvdisasm)")
    return tool
