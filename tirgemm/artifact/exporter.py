"""A kernel as one shared library that needs apache-tvm-ffi alone: the launcher with binaries and manifest behind
it."""

from __future__ import annotations

import struct
from pathlib import Path

from tirgemm.artifact import native
from tirgemm.artifact.package import ArtifactData, read
from tirgemm.artifact.regular_file import write_named
from tirgemm.artifact.trust import Trust

_MAGIC = b"TIRGEMM2"


def export(artifact: ArtifactData, out_path: Path | str, trust: Trust | None = None) -> Path:
    """Write the single-file ``.so`` of an artifact, whose signature is checked first, and return its path.

    ``tvm_ffi.load_module(path)["main"]`` takes tensors and scalars in the launch's order, as ``Kernel.raw`` does. The
    file itself is not signed: whoever loads a shared library trusts where it came from.
    """
    package, out_path = read(artifact, trust), Path(out_path)
    launcher = native.built_library().read_bytes()
    sizes = [len(binary) for binary in package.binaries]
    tail = struct.pack(f"<{len(sizes)}QQQ8s", *sizes, len(sizes), len(package.manifest_bytes), _MAGIC)
    write_named(out_path, launcher + b"".join(package.binaries) + package.manifest_bytes + tail)
    return out_path
