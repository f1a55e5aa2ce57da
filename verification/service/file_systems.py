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
    names = _files(folder)
    try:
        made = _set_flag("+i", names)
        if made.returncode:  # a file of a moment has vanished, perhaps: SQLite has such
            made = _set_flag("+i", [name for name in names if Path(name).exists()])
        if made.returncode:
            raise InvalidRequest(f"files cannot be made immutable here: {made.stderr.strip()[:200]}")
        yield
    finally:
        freed = _set_flag("-i", [name for name in names if Path(name).exists()])
        if freed.returncode:
            print(f"files in {folder} may be immutable still: {freed.stderr.strip()[:200]}", flush=True)


def _files(folder: Path) -> list[str]:
    """What is in the folder, and the folder; without locks, the log and what SQLite's connections share."""
    inside = [path for path in folder.rglob("*") if folder / "locks" not in (path, *path.parents)]
    names = [str(path) for path in (folder, *inside) if path.is_dir() or path.is_file()]
    return [name for name in names if not name.endswith(("-shm", "serve.log"))]


def _set_flag(flag: str, names: list[str]) -> subprocess.CompletedProcess[str]:
    """Raises InvalidRequest where there is no program for it."""
    try:
        return subprocess.run(["chattr", flag, *names], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InvalidRequest(f"chattr, which makes files immutable, cannot be run: {error.strerror}") from error


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
