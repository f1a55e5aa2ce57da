"""Packages of this environment that some extras of ours require, linked into a folder: pip finds them installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def serves(python: str, path: str) -> bool:
    """Whether ``python`` of the folders of ``path`` is of this interpreter's version, for which packages are built."""
    told = subprocess.run([python, "--version"], check=True, capture_output=True, text=True, env={"PATH": path})
    return told.stdout.split()[1] == ".".join(map(str, sys.version_info[:3]))


def link_packages(extras: Iterable[str], folder: Path) -> None:
    """Link what tirgemm with ``extras`` requires, directly and not: neither tirgemm nor anything else.

    Folders that other packages share are made, and what lies in them is linked one by one.
    """
    required = _required(extras)
    names = {package.name for package in required}
    alien = {
        part
        for package in distributions()
        if package.name not in names
        for file in _files(package)
        for part in (file, *file.parents)
    }
    for package in required:
        for file in _files(package):
            # From the top: the first that is of required packages alone.
            own = next(part for part in (*reversed(file.parents[:-1]), file) if part not in alien)
            link = folder / own
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(str(package.locate_file(own))).resolve())


def _files(package: Distribution) -> list[PurePosixPath]:
    """Those within the folder of packages: programs lie elsewhere."""
    return [file for file in package.files or () if ".." not in file.parts]


def _required(extras: Iterable[str]) -> list[Distribution]:
    packages: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    queue = [("tirgemm", extra) for extra in ("", *extras)]
    while queue:
        name, extra = asked = queue.pop()
        if asked in seen:
            continue
        seen.add(asked)
        packages[name] = distribution(name)
        for line in packages[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                queue += [(canonicalize_name(needed.name), more) for more in ("", *needed.extras)]
    del packages["tirgemm"]
    return list(packages.values())
