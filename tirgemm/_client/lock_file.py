"""Lock files: the very artifacts that a deployment uses, by the names and problems of its model file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tirgemm._client.model_file import problem_text
from tirgemm._client.service_json import parse_json
from tirgemm._version import __version__
from tirgemm.artifact import Manifest, Package
from tirgemm.artifact.regular_file import read_regular, write_named
from tirgemm.errors import InvalidRequest, MismatchedArtifact, TirgemmError, UnverifiedArtifact
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.status import Role

FORMAT = 1
MAX_FILE_BYTES = 2**22
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LockedKernel:
    """One kernel of a lock file: its problem, its device's key, its regime and role, and its hashes."""

    gemm: str
    device: str
    regime: Regime
    role: Role
    kernel_sha256: str
    artifact_sha256: str
    artifact_bytes: int

    def check(self, manifest: Manifest, *, verify: bool = True) -> None:
        """Raise MismatchedArtifact where a signed artifact of this hash says another thing, UnverifiedArtifact where it
        has no passed certificate and ``verify``."""
        signed = {
            "gemm": str(manifest.gemm),
            "device": manifest.device.key,
            "regime": manifest.regime or self.regime,
            "role": manifest.role or self.role,
            "kernel_sha256": manifest.kernel_sha256,
        }
        for name, value in signed.items():
            said = getattr(self, name)
            if said != value:
                words = f"the lock file says of artifact {self.artifact_sha256} that its {name} is {said!r:.200}"
                raise MismatchedArtifact(f"{words}; it is {value!r}")
        if verify and manifest.certificate_fault:
            raise UnverifiedArtifact(f"the locked artifact for {self.gemm}: {manifest.certificate_fault}")


@dataclass(frozen=True, slots=True)
class LockFile:
    """The locked kernels by their names."""

    kernels: Mapping[str, LockedKernel]

    @classmethod
    def read(cls, path: Path) -> LockFile:
        """Read ``path``. Raises InvalidRequest for what cannot be read, is no lock file, or one of a newer version."""
        try:
            data = read_regular(path, MAX_FILE_BYTES)
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror or error}") from error
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequest(f"{path} is larger than a lock file may be, which is {MAX_FILE_BYTES} bytes")
        try:
            document = _object(parse_json(data.decode()), "it", ("format", "kernels"))
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']!r:.40}; this tirgemm reads {FORMAT}")
            listed = _object(document["kernels"], "its member kernels")
            return cls({name: _locked(f"its entry {name!r:.200}", value) for name, value in listed.items()})
        except (ValueError, TirgemmError) as error:
            raise InvalidRequest(f"{path} is no lock file: {error}; `tirgemm lock` writes one") from error

    def write(self, path: Path) -> None:
        """Write it whole or not at all; the same kernels give the same bytes. Raises InvalidRequest."""
        kernels = {name: asdict(self.kernels[name]) for name in sorted(self.kernels)}
        document = {"format": FORMAT, "tirgemm": __version__, "kernels": kernels}
        write_named(path, (json.dumps(document, indent=2) + "\n").encode())

    def named(self, text: str, device: str | None = None, regime: Regime | None = None) -> LockedKernel:
        """The kernel of a name, or of a problem in its text form, for a device by its key, kind or architecture, and in
        ``regime``: of several, in the sustained one by default.

        Raises InvalidRequest where there is none, or more than one artifact.
        """
        if text in self.kernels:
            kernel = self.kernels[text]
            if not _is_called(kernel.device, device):
                raise InvalidRequest(f"the lock file has {text!r:.200} for the device {kernel.device}, not {device}")
            if regime not in (None, kernel.regime):
                raise InvalidRequest(f"the lock file has {text!r:.200} in the regime {kernel.regime}, not {regime}")
            return kernel
        gemm = problem_text(text)
        meant = {
            kernel for kernel in self.kernels.values() if kernel.gemm == gemm and _is_called(kernel.device, device)
        }
        if regime is not None or len(meant) > 1:
            meant = {kernel for kernel in meant if kernel.regime == (regime or "sustained")}
        if len(meant) != 1:
            known = ", ".join(list(self.kernels)[:10])
            count = "no kernel" if not meant else f"{len(meant)} kernels"
            raise InvalidRequest(f"the lock file has {count} for {text!r:.200}; it has {known}")
        return meant.pop()


def locked_of(package: Package, regime: Regime, role: Role) -> LockedKernel:
    """The entry for an artifact, as it is signed; ``regime`` and ``role`` where that does not say."""
    manifest = package.manifest
    return LockedKernel(
        gemm=str(manifest.gemm),
        device=manifest.device.key,
        regime=manifest.regime or regime,
        role=manifest.role or role,
        kernel_sha256=manifest.kernel_sha256,
        artifact_sha256=package.sha256,
        artifact_bytes=len(package.data),
    )


def _object(value: Any, what: str, members: Sequence[str] = ()) -> dict[str, Any]:
    """``value``, if it is an object with these members. Raises ValueError with all that are missing."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r:.80}; it must be an object")
    missing = [name for name in members if name not in value]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    return value


def _locked(entry: str, value: Any) -> LockedKernel:
    known = [field.name for field in fields(LockedKernel)]
    members = _object(value, entry, known)
    unknown = [name for name in members if name not in known]
    if unknown:
        raise ValueError(f"{entry} has {unknown[0]!r:.80}, which is no member; there are {', '.join(known)}")
    for name, member in members.items():
        wanted, words = (int, "an integer") if name == "artifact_bytes" else (str, "a text")
        if not isinstance(member, wanted) or isinstance(member, bool):
            raise ValueError(f"{entry}: {name} is {member!r:.80}; it must be {words}")
    kernel = LockedKernel(**members)
    for name in ("kernel_sha256", "artifact_sha256"):
        if not _SHA256.fullmatch(getattr(kernel, name)):
            raise ValueError(f"{entry}: {name} is {getattr(kernel, name)!r:.80}, which is no SHA-256")
    try:
        regime_named(kernel.regime)
        written = str(Gemm.parse(kernel.gemm))
    except TirgemmError as error:
        raise ValueError(f"{entry}: {error}") from error
    if written != kernel.gemm:
        raise ValueError(f"{entry}: gemm is {kernel.gemm!r:.80}; it is written {written}")
    return kernel


def _is_called(key: str, name: str | None) -> bool:
    """Whether a device of that key is meant by ``name``: the key itself, its kind or its architecture; any by None."""
    return name is None or name == key or name in key.split(":")[:2]
