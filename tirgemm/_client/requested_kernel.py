"""Comparison of a signed artifact, and of the document that named it, with the request that they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirgemm.artifact import Manifest
from tirgemm.device import Device, is_device_place
from tirgemm.errors import MismatchedArtifact, UnverifiedArtifact
from tirgemm.gemm import Gemm, Regime

# Who may have the default kernel in place of a tuned one.
TAKES_DEFAULT = 'wait="fallback", wait in seconds or effort="none"'


@dataclass(frozen=True, slots=True)
class RequestedKernel:
    """A kernel as it was asked for: ``device`` by its key or a name. ``verify=False`` takes one without a passed
    certificate."""

    gemm: Gemm
    device: str
    regime: Regime
    verify: bool = True

    def check(self, manifest: Manifest, document: dict[str, Any], url: str) -> None:
        """Raise MismatchedArtifact for a kernel that was not asked for, UnverifiedArtifact for one without evidence.

        Only what is signed counts; the ``document`` in which ``url`` named the artifact must agree with it.
        """
        answered = f"{url} answered a request for"
        if manifest.gemm != self.gemm:
            raise MismatchedArtifact(f"{answered} {self.gemm} with a kernel for {manifest.gemm}")
        if not _is_called(manifest.device, self.device):
            raise MismatchedArtifact(f"{answered} device {self.device} with a kernel for {manifest.device.key}")
        if manifest.regime is not None and manifest.regime != self.regime:
            raise MismatchedArtifact(f"{answered} regime {self.regime} with a kernel of regime {manifest.regime}")
        if self.verify:
            self._check_evidence(manifest, url)
        device = document.get("device")
        said = (device.get("key") if isinstance(device, dict) else None, document.get("regime"), document.get("role"))
        signed = (manifest.device.key, manifest.regime or said[1], manifest.role or said[2])
        for what, one, other in zip(("device", "regime", "role"), said, signed, strict=True):
            if one != other:
                raise MismatchedArtifact(
                    f"{url} calls the {what} of a kernel {one!r:.120}; its artifact says {other!r}"
                )

    def _check_evidence(self, manifest: Manifest, url: str) -> None:
        fault, advice = manifest.certificate_fault, "verify=False takes it all the same"
        if not fault and manifest.role is None:
            fault = f"it has format {manifest.data['format']}, in which regime and role are not signed"
            advice = f"retune=True makes a new one, {advice}"
        if not fault and manifest.role == "unverified":
            fault = "it is a build that nobody has run"
        if fault:
            raise UnverifiedArtifact(f"the artifact for {self.gemm} from {url}: {fault}; {advice}")


def is_default(document: dict[str, Any] | None) -> bool:
    """Whether this is the document of a default kernel that nobody has pinned."""
    return document is not None and document.get("role") == "fallback" and document.get("pinned") is not True


def _is_called(device: Device, name: str) -> bool:
    """Whether a signed device class is one that was asked for by ``name``; a place such as cuda:0 is any GPU."""
    return name in device.names or (device.kind == "cuda" and name != "cpu" and is_device_place(name))
