"""Other kernels of a problem: on the same model of device over environments and versions, and on other devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from tirgemm.artifact.package import unverified_manifest
from tirgemm.errors import ArtifactError, StoreError
from tirgemm.service.views.queries import kernels_by_id
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import GemmRow, KernelRow

MOST = 100
# Of the note that ptxas, which is in NVRTC, puts into a cubin; an artifact's members are stored as they are.
_NVRTC = re.compile(rb"Cuda compilation tools, release [0-9.]{1,16}, V([0-9.]{1,16})")


def kernels_of_problem(database: Database, record: KernelRecord) -> list[KernelRecord]:
    """The newest kernels of the problem of ``record``, itself among them, at most MOST: of every device, regime and
    role, in the order in which they were stored, the newest first."""
    problem = select(GemmRow.id).where(GemmRow.text == str(record.gemm)).scalar_subquery()
    wanted = select(KernelRow.id).where(KernelRow.gemm_id == problem).order_by(KernelRow.seq.desc()).limit(MOST)
    with database.read() as connection:
        ids = connection.execute(wanted).scalars().all()
    return kernels_by_id(database, ids)


def environment_of(store: Store, record: KernelRecord) -> dict[str, str]:
    """What a kernel was built and measured under: driver, compilers, packages and their versions, of its device, its
    certificate and its artifact."""
    certified = record.certificate.environment if record.certificate is not None else {}
    return {**dict(record.device.environment), **certified, **_build_versions(store, record)}


def changed(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str | None]:
    """What of the environment is another ``there``, by name; None where nothing says it of that side."""
    names = sorted({*here, *there})
    return {name: there.get(name) for name in names if here.get(name) != there.get(name)}


def _build_versions(store: Store, record: KernelRecord) -> dict[str, str]:
    """Of tirgemm, as the manifest has it, and of NVRTC, as the cubin has; none where the artifact is not there or says
    nothing. Nothing of it is verified."""
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
