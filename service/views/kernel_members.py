"""A kernel record as the members of its JSON document; needs nothing of the ``service`` extra."""

from __future__ import annotations

from typing import Any

from tirgemm.device import Device
from tirgemm.tuning.records import KernelRecord


def kernel_members(record: KernelRecord) -> dict[str, Any]:
    """The kernel document of the API."""
    own, artifact = f"/v1/kernels/{record.id}", f"/v1/artifacts/{record.artifact_sha256}"
    # What is explained are GPU kernels.
    explain = {"explain": f"{own}/explain"} if record.device.kind == "cuda" else {}
    certificate = record.certificate
    return {
        "id": record.id,
        "gemm": str(record.gemm),
        "problem": record.gemm.to_json(),
        "device": device_members(record.device),
        "regime": record.regime,
        "role": record.role,
        "portable": record.portable,
        "pinned": record.pinned,
        "verified": certificate is not None and certificate.passed,
        "family": record.config.family,
        "config": dict(record.config.knobs),
        "config_hash": record.config.digest,
        "kernel_sha256": record.kernel_sha256,
        "members": [] if record.timings.members is None else [one.to_json() for one in record.timings.members],
        "timings": {name: value for name, value in record.timings.to_json().items() if name != "members"},
        "certificate": certificate.to_json() if certificate else None,
        "artifact": {"sha256": record.artifact_sha256, "bytes": record.artifact_bytes, "url": artifact},
        "trials": record.trials,
        "created_at": record.created_at,
        "links": {"self": own, "artifact": artifact} | explain,
    }


def device_members(device: Device) -> dict[str, str]:
    """A device as documents name it."""
    return {name: getattr(device, name) for name in ("key", "name", "kind", "model", "arch")}
