"""File systems that refuse what a program writes: a small one that gets full, and files that nobody can write."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tirgemm.errors import InvalidRequest


@contextmanager
def immutable(folder: Path) -> Iterator[None]:
    """What is in ``folder`` can be neither written, where it is open already too, nor added to. What a service keeps
    elsewhere is left alone: locks, the log, and the memory that SQLite's connections share. Raises InvalidRequest where
    the file system has no such flag."""
    kept = (folder / "locks", folder / "serve.log")
    inside = [path for path in folder.rglob("*") if path not in kept and (folder / "locks") not in path.parents]
    names = [str(path) for path in (folder, *inside) if path.is_dir() or path.is_file()]
    names = [name for name in names if not name.endswith("-shm")]
    made = subprocess.run(["chattr", "+i", *names], capture_output=True, text=True, check=False)
    try:
        if made.returncode:
            raise InvalidRequest(f"files cannot be made immutable here: {made.stderr.strip()[:200]}")
        yield
    finally:
        subprocess.run(["chattr", "-i", *names], capture_output=True, check=False)


@contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    """A folder on a file system of that size. Raises InvalidRequest where none can be mounted."""
    with tempfile.TemporaryDirectory(prefix="tirgemm-disk-") as name:
        size = f"size={mebibytes}m"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", name], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            raise InvalidRequest(f"no file system can be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=False)
