"""The manifest: what a kernel is, as the JSON that is signed.

``{"format": 2, "kernel": {...}, "kernel_sha256": ..., "regime": ..., "role": ..., "certificate": {...} | null,
"timings": {...}}``. The kernel part names the binary and the sources by their hashes and is itself hashed, so that one
number stands for what was measured, certified and served; what comes later is outside it. Format 1 had neither regime
nor role.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tirgemm._version import __version__
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import CorruptArtifact, IncompatibleArtifact, InvalidRequest, TirgemmError
from tirgemm.gemm import REGIMES, Gemm, Regime
from tirgemm.launch import Launch, scalar_args, tensor_args
from tirgemm.status import ROLES, Role
from tirgemm.timings import Timings

FORMAT = 2
_FIELDS = {"format", "kernel", "kernel_sha256", "certificate", "timings"}
_FIELDS_OF = {1: _FIELDS, 2: _FIELDS | {"regime", "role"}}
FORMATS = {"cubin": "kernel.cubin", "so": "kernel.so"}
# ELF machines: a CUDA artifact holds machine code for the GPU, never its source.
_EM_CUDA = 190


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """The one JSON text that hashes are taken over: sorted keys, no spaces, ASCII. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def check_binary(data: bytes, binary_format: str) -> None:
    """Raise ValueError unless ``data`` is machine code of that format."""
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise ValueError(f"the {binary_format} is not an ELF file but begins with {data[:16]!r}")
    machine = int.from_bytes(data[18:20], "little")
    if (machine == _EM_CUDA) != (binary_format == "cubin"):
        raise ValueError(f"the {binary_format} is an ELF file for machine {machine}")


@dataclass(frozen=True)
class Manifest:
    """A manifest, read. ``data`` is the whole JSON document.

    ``regime`` and ``role`` say what the kernel was selected for; None of one that is only measured, and of format 1.
    """

    gemm: Gemm
    config: Config
    device: Device
    launch: Launch
    binary_format: str
    binary_sha256: str
    sources: dict[str, str]
    flags: tuple[str, ...]
    kernel_sha256: str
    certificate: dict[str, Any] | None
    timings: Timings
    regime: Regime | None
    role: Role | None
    tirgemm: str
    data: dict[str, Any] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return self.data

    @property
    def kernel_json(self) -> str:
        """The kernel part as the launcher reads it."""
        return canonical(self.data["kernel"]).decode("ascii")

    @property
    def certificate_fault(self) -> str:
        """Why the certificate is no evidence that this very kernel is right, in words; empty where it is."""
        evidence = self.certificate
        if evidence is None:
            return "it holds no certificate: nobody verified this build"
        if evidence.get("kernel_sha256") != self.kernel_sha256:
            return f"its certificate is of another kernel, {evidence.get('kernel_sha256')!r:.80}"
        tests = evidence.get("tests")
        if not isinstance(tests, list) or not tests:
            return "its certificate names no tests"
        failed = [test for test in tests if not isinstance(test, dict) or test.get("passed") is not True]
        if failed or evidence.get("passed") is not True:
            return f"its certificate did not pass: {len(failed)} of its {len(tests)} tests failed"
        return ""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What an artifact is packed of: a kernel with its binary, the texts behind that, the evidence and the times."""

    gemm: Gemm
    config: Config
    device: Device
    launch: Launch
    binary: bytes = field(repr=False)
    binary_format: str
    sources: Mapping[str, str] = field(repr=False)
    flags: tuple[str, ...]
    certificate: dict[str, Any] | None
    timings: Timings
    regime: Regime | None = None
    role: Role | None = None


def write(contents: Contents) -> bytes:
    """The bytes of a manifest. Raises InvalidRequest for a launch that is not of the gemm, or for what is not JSON."""
    gemm, device, launch, binary_format = contents.gemm, contents.device, contents.launch, contents.binary_format
    if binary_format != {"cuda": "cubin", "cpu": "so"}[device.kind]:
        raise InvalidRequest(
            f"binary format is {binary_format!r}; a {device.kind} kernel is a cubin on cuda and a so on cpu"
        )
    if launch.tensors != tensor_args(gemm) or launch.scalars != scalar_args(gemm):
        raise InvalidRequest(f"the launch's tensors and scalars are not those of {gemm}")
    _check_selection(contents.regime, contents.role, InvalidRequest)
    try:
        check_binary(contents.binary, binary_format)
        kernel = {
            "gemm": gemm.to_json(),
            "config": contents.config.to_json(),
            "device": device.to_json(),
            "launch": launch.to_json(),
            "binary": {"name": FORMATS[binary_format], "sha256": sha256(contents.binary), "format": binary_format},
            "flags": list(contents.flags),
            "sources": {name: sha256(text.encode()) for name, text in sorted(contents.sources.items())},
            "tirgemm": __version__,
        }
        document = {
            "format": FORMAT,
            "kernel": kernel,
            "kernel_sha256": sha256(canonical(kernel)),
            "regime": contents.regime,
            "role": contents.role,
            "certificate": contents.certificate,
            "timings": contents.timings.to_json(),
        }
        canonical(document)
        return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"this kernel cannot be packed: {error}") from error


def read(data: bytes) -> Manifest:
    """The manifest that ``write`` wrote. Raises CorruptArtifact, and IncompatibleArtifact for a newer format."""
    try:
        document = json.loads(data)
        version = document["format"]
        if type(version) is not int or version < 1:
            raise ValueError(f"format {version!r} is unknown")
        if version > FORMAT:
            raise IncompatibleArtifact(
                f"the artifact has format {version}; this tirgemm ({__version__}) reads up to {FORMAT}: install a "
                f"newer one"
            )
        if set(document) != _FIELDS_OF[version]:
            raise ValueError(f"its fields are {', '.join(sorted(document))}")
        regime, role = document.get("regime"), document.get("role")
        _check_selection(regime, role, ValueError)
        kernel = document["kernel"]
        if sha256(canonical(kernel)) != document["kernel_sha256"]:
            raise ValueError("kernel_sha256 is not the hash of its kernel")
        certificate = document["certificate"]
        if not isinstance(document["timings"], dict) or not (certificate is None or isinstance(certificate, dict)):
            raise ValueError("certificate and timings are not objects")
        binary_format = kernel["binary"]["format"]
        if kernel["binary"]["name"] != FORMATS[binary_format]:
            raise ValueError(f"the binary is called {kernel['binary']['name']!r}")
        manifest = Manifest(
            gemm=Gemm.from_json(kernel["gemm"]),
            config=Config.from_json(kernel["config"]),
            device=Device.from_json(kernel["device"]),
            launch=Launch.from_json(kernel["launch"]),
            binary_format=binary_format,
            binary_sha256=str(kernel["binary"]["sha256"]),
            sources={str(name): str(digest) for name, digest in kernel["sources"].items()},
            flags=tuple(map(str, kernel["flags"])),
            kernel_sha256=document["kernel_sha256"],
            certificate=certificate,
            timings=Timings.from_json(document["timings"]),
            regime=regime,
            role=role,
            tirgemm=str(kernel["tirgemm"]),
            data=document,
        )
        if manifest.launch.tensors != tensor_args(manifest.gemm) or manifest.launch.scalars != scalar_args(
            manifest.gemm
        ):
            raise ValueError("the launch's tensors and scalars are not those of its gemm")
    except IncompatibleArtifact:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, TirgemmError) as error:
        raise CorruptArtifact(f"the manifest is malformed: {error}") from error
    return manifest


def _check_selection(regime: object, role: object, refuse: Callable[[str], Exception]) -> None:
    """Raise unless a kernel was selected in a regime and as a role, or neither is said."""
    if (regime, role) != (None, None) and not (regime in REGIMES and role in ROLES):
        raise refuse(
            f"regime is {regime!r:.80} and role {role!r:.80}; they must be one of {', '.join(REGIMES)} and of "
            f"{', '.join(ROLES)}, or both null"
        )
