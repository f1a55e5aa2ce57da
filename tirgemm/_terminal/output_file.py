"""Files that commands write: refused ahead of the work where they cannot be written or hold another kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tirgemm.errors import ArtifactError, InvalidRequest

if TYPE_CHECKING:
    from tirgemm.artifact.manifest import Manifest
    from tirgemm.artifact.package import Package


def check_output(path: Path | None, option: str = "--output", *, replaces: bool = False) -> None:
    """Raise InvalidRequest unless ``path``, which ``option`` names, is None or can be written; where another file
    ``replaces`` it, no device or FIFO can."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidRequest(f"{option} is {path}, which is a folder; name a file")
    if not path.parent.is_dir():
        raise InvalidRequest(f"{option} is {path}, but there is no folder {path.parent}; make it first")
    if replaces and path.exists() and not path.is_file():
        raise InvalidRequest(f"{option} is {path}, which is no regular file; name one")
    # A file is replaced by a draft beside it, or beside what a link points to; a device is written to.
    places = [path] if path.exists() else []
    if path.is_file() or not places:
        places.append(Path(os.path.realpath(path)).parent)
    for place in places:
        if not os.access(place, os.W_OK):
            raise InvalidRequest(
                f"{option} is {path}, which this user cannot write for want of access to {place}; name another place"
            )


def require_other_file(path: Path, option: str, source: Path, what: str) -> None:
    """Raise InvalidRequest where ``path``, which ``option`` names, is ``source``, through links too."""
    if os.path.realpath(path) == os.path.realpath(source):
        raise InvalidRequest(f"{option} is {path}, which is {what} itself; name another file")


def write_artifact(package: Package, named: Path | None, default: Path) -> Path:
    """Write a package to the file that the user ``named``, else to ``default``, and return which.

    Raises InvalidRequest where ``default`` holds the kernel of another problem, device or regime, and for a file that
    cannot be written, of which nothing is left.
    """
    from tirgemm.artifact.regular_file import write_named

    if named is None:
        held, new = _held(default), package.manifest
        if held is not None and _what(held) != _what(new):
            raise InvalidRequest(
                f"{default} holds the kernel of {_what(held)}, not of {_what(new)}; name another file with --output"
            )
    path = named or default
    write_named(path, package.data)
    return path


def _held(path: Path) -> Manifest | None:
    """The manifest of the artifact at ``path``, whoever signed it; None where there is none."""
    from tirgemm.artifact import Trust
    from tirgemm.artifact.package import read, read_file, signing_key

    try:
        data = read_file(path)
        return read(data, Trust.of(signing_key(data))).manifest
    except (ArtifactError, InvalidRequest):
        return None


def _what(manifest: Manifest) -> str:
    regime = f", {manifest.regime}" if manifest.regime else ""
    return f"{manifest.gemm} on {manifest.device.key}{regime}"
