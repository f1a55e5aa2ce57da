"""A kernel as one shared library that needs apache-tvm-ffi alone: the launcher with binaries and manifest behind
it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tirgemm.artifact import native
from tirgemm.artifact.package import read
from tirgemm.artifact.trust import Trust
from tirgemm.errors import InvalidRequest

_MAGIC = b"TIRGEMM2"


def export(artifact: bytes | Path | str, out_path: Path | str, trust: Trust | None = None) -> Path:
    """Write the single-file ``.so`` of an artifact, whose signature is checked first, and return its path.

    ``tvm_ffi.load_module(path)["main"]`` takes tensors and scalars in the launch's order, as ``Kernel.raw`` does. The
    file itself is not signed: whoever loads a shared library trusts where it came from.
    """
    package, out_path = read(artifact, trust), Path(out_path)
    launcher = native.built_library().read_bytes()
    sizes = [len(binary) for binary in package.binaries]
    tail = struct.pack(f"<{len(sizes)}QQQ8s", *sizes, len(sizes), len(package.manifest_bytes), _MAGIC)
    draft = out_path.with_name(f".{out_path.name}.{os.getpid()}")
    try:
        draft.write_bytes(launcher + b"".join(package.binaries) + package.manifest_bytes + tail)
        draft.replace(out_path)
    except OSError as error:
        raise InvalidRequest(f"{out_path} cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return out_path
