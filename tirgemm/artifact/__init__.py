"""Artifacts: packed, signed, verified, loaded, called. TVM is not needed, and tvm_ffi only from ``load`` on."""

from __future__ import annotations

from tirgemm.artifact.call import Kernel
from tirgemm.artifact.exporter import export
from tirgemm.artifact.loader import load
from tirgemm.artifact.manifest import Contents, Manifest, SetContents
from tirgemm.artifact.package import Package, pack, read
from tirgemm.artifact.sign import Signer
from tirgemm.artifact.trust import Trust

__all__ = [
    "Contents",
    "Kernel",
    "Manifest",
    "Package",
    "SetContents",
    "Signer",
    "Trust",
    "export",
    "load",
    "pack",
    "read",
]
