"""Versions that built a stored kernel: tirgemm's, as its manifest has it, and NVRTC's, as its cubin has."""

from __future__ import annotations

import re
from typing import Any

from tirgemm.artifact.package import unverified_manifest
from tirgemm.errors import ArtifactError, StoreError
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store

# Of the note that ptxas, which is in NVRTC, puts into a cubin; an artifact's members are stored as they are.
_NVRTC = re.compile(rb"Cuda compilation tools, release [0-9.]{1,16}, V([0-9.]{1,16})")


def build_versions(store: Store, record: KernelRecord) -> dict[str, str]:
    """By name; empty where the artifact is not there or says nothing. Nothing of it is verified."""
    try:
        blob = store.get_blob(record.artifact_sha256)
        document = unverified_manifest(blob)
    except (StoreError, ArtifactError):
        return {}
    version, nvrtc = _tirgemm(document), _NVRTC.search(blob)
    return ({"tirgemm": version} if version else {}) | ({"nvrtc": nvrtc[1].decode()} if nvrtc else {})


def _tirgemm(document: dict[str, Any]) -> str:
    """Of a set that of its first kernel, which all are built by."""
    members = document.get("members")
    first = members[0] if isinstance(members, list) and members else document
    kernel = first.get("kernel") if isinstance(first, dict) else None
    version = kernel.get("tirgemm") if isinstance(kernel, dict) else None
    return version[:40] if isinstance(version, str) else ""
