"""The manifest: what a kernel, or a set of kernels over ranges of m, is, as the JSON that is signed.

``{"format": 2, "kernel": {...}, "kernel_sha256": ..., "regime": ..., "role": ..., "certificate": {...} | null,
"timings": {...}}``. The kernel part names the binary and the sources by their hashes and is itself hashed, so that one
number stands for what was measured, certified and served; what comes later is outside it. Format 1 had neither regime
nor role.

A kernel of which a tensor map's box has a side that is an expression in m has format 4, and is otherwise as in format
2: whoever does not know such sides must refuse it as newer.

A set has format 3, ``{"format": 3, "gemm": {...}, "members": [...], "kernel_sha256": ..., "regime": ..., "role": ...,
"timings": {...}}``. Each member is a kernel as above, with its own hash, certificate and timings, of the set's problem
but for m: their ranges of m follow one another and are together the problem's. The set's hash is taken over the problem
and the members' hashes. One with a kernel of format 4 among its members,
or with more than eight, has format 5, and one with more than 24 format 6: readers of the format before refuse so many.
A set of which the sources of all kernels lie in one file has format 7, and ``"sources_sha256"``, the hash of that file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tirgemm._version import __version__
from tirgemm.config import Config
from tirgemm.device import Device, is_device_key
from tirgemm.errors import CorruptArtifact, IncompatibleArtifact, InvalidRequest, TirgemmError
from tirgemm.expr import Expr
from tirgemm.gemm import REGIMES, Gemm, Range, Regime
from tirgemm.launch import Launch, TensorMap, scalar_args, tensor_args
from tirgemm.status import ROLES, Role
from tirgemm.timings import Timings

FORMAT = 7
"""The newest format that is read; each artifact has the oldest one that says what it needs."""
MAX_KERNELS = 64
"""The most kernels of a set, as the launcher has it (``kMaxMembers``); tuning makes fewer."""
# By the most kernels of a set the format that says so.
_FORMAT_OF_COUNT = {8: 3, 24: 5, MAX_KERNELS: 6}
CHAIN = "chain"
"""The test of a certificate that covers dependent launches (``tirgemm.tuning.verify.chain``)."""
_MEMBER = {"kernel", "kernel_sha256", "certificate", "timings"}
_FIELDS_OF = {
    1: _MEMBER | {"format"},
    2: _MEMBER | {"format", "regime", "role"},
    3: {"format", "gemm", "members", "kernel_sha256", "timings", "regime", "role"},
}
_FIELDS_OF |= {4: _FIELDS_OF[2], 5: _FIELDS_OF[3], 6: _FIELDS_OF[3], 7: _FIELDS_OF[3] | {"sources_sha256"}}
_SETS = (3, 5, 6, 7)
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
    """A manifest, read. ``data`` is the JSON document.

    ``regime`` and ``role`` say what the kernel was selected for; None of one that is only measured, and of format 1. Of
    a set ``members`` are the kernels by rising m; ``gemm`` is the whole problem, ``kernel_sha256`` the set's, and
    ``certificate`` has the tests of all of them. ``config``, ``launch``, binary, ``sources`` and ``flags`` are those of
    the last member, which serves the largest m.
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
    members: tuple[Manifest, ...] = ()

    @property
    def kernels(self) -> tuple[Manifest, ...]:
        """The manifest of every kernel: the members of a set, else this one alone."""
        return self.members or (self,)

    def to_json(self) -> dict[str, Any]:
        return self.data

    @property
    def sources_sha256(self) -> str | None:
        """The hash of the file that has the sources of all kernels of a set; None where each is a file of its own."""
        return self.data.get("sources_sha256")

    @property
    def kernel_json(self) -> str:
        """The kernel part as the launcher reads it."""
        return canonical(self.data["kernel"]).decode("ascii")

    @property
    def dependent_launch(self) -> bool:
        """Whether a call begins while what is ahead of it in the stream ends: of a set, one of some m.

        Kernels behind the first of a call say nothing of it: they may be launched dependently in any call.
        """
        first = (kernel.launch.kernels[0] for kernel in self.kernels if kernel.launch.kernels)
        return self.device.kind == "cuda" and any(launch.is_dependent for launch in first)

    @property
    def certificate_fault(self) -> str:
        """Why the certificate is no evidence that this very kernel is right, in words; empty where it is.

        Of a set every member's must be.
        """
        for member in self.members:
            if member.certificate_fault:
                return f"of its kernel for m = {member.gemm.m}: {member.certificate_fault}"
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
        if self.dependent_launch and all(test.get("name") != CHAIN for test in tests):
            return f"its calls are launched dependently, and its certificate has no test {CHAIN}"
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


@dataclass(frozen=True, kw_only=True)
class SetContents:
    """What the artifact of a kernel set is packed of: the problem, its kernels by rising m, the times of the whole."""

    gemm: Gemm
    members: tuple[Contents, ...]
    timings: Timings
    regime: Regime | None = None
    role: Role | None = None


def set_sha256(gemm: Gemm, members: Sequence[str]) -> str:
    """The hash of a set, over its problem and the hashes of its kernels by rising m."""
    return sha256(canonical({"gemm": gemm.to_json(), "members": list(members)}))


def joined_certificate(kernel_sha256: str, members: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The certificate of a set, with the tests of all its kernels; None where one has none."""
    held = [member for member in members if member is not None]
    if not held or len(held) < len(members):
        return None
    tests = [test for member in held for test in (member.get("tests") or ())]
    passed = all(member.get("passed") is True for member in held)
    return held[-1] | {"kernel_sha256": kernel_sha256, "passed": passed, "tests": tests}


def write(contents: Contents | SetContents, sources_sha256: str | None = None) -> bytes:
    """The bytes of a manifest; ``sources_sha256`` is the hash of the file that has the sources of all kernels of a set,
    if there is one. Raises InvalidRequest for a launch that is not of the gemm, for kernels that are no set of the
    problem, and for what is not JSON."""
    _check_selection(contents.regime, contents.role, InvalidRequest)
    selected = {"regime": contents.regime, "role": contents.role}
    try:
        if isinstance(contents, SetContents):
            members = [_member(member) for member in contents.members]
            _check_ranges(contents.gemm, [member.gemm for member in contents.members])
            hashes = [member["kernel_sha256"] for member in members]
            version = next(number for most, number in _FORMAT_OF_COUNT.items() if len(members) <= most)
            if any(_boxes_vary(member.launch) for member in contents.members):
                version = max(5, version)
            joined = {} if sources_sha256 is None else {"sources_sha256": sources_sha256}
            document = {
                "format": 7 if joined else version,
                "gemm": contents.gemm.to_json(),
                "members": members,
                "kernel_sha256": set_sha256(contents.gemm, hashes),
                **joined,
                **selected,
                "timings": contents.timings.to_json(),
            }
        else:
            member = _member(contents)
            evidence = {name: member.pop(name) for name in ("certificate", "timings")}
            document = {"format": 4 if _boxes_vary(contents.launch) else 2, **member, **selected, **evidence}
        canonical(document)
        return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"this kernel cannot be packed: {error}") from error


def _boxes_vary(launch: Launch) -> bool:
    """Whether a side of a tensor map's box depends on m."""
    maps = [param for kernel in launch.kernels for param in kernel.params if isinstance(param, TensorMap)]
    return any(isinstance(side, Expr) for each in maps for side in each.box)


def _member(contents: Contents) -> dict[str, Any]:
    """A kernel as its manifest has it, but for what it was selected for."""
    gemm, device, launch, binary_format = contents.gemm, contents.device, contents.launch, contents.binary_format
    if binary_format != {"cuda": "cubin", "cpu": "so"}[device.kind]:
        raise InvalidRequest(
            f"binary format is {binary_format!r}; a {device.kind} kernel is a cubin on cuda and a so on cpu"
        )
    if launch.tensors != tensor_args(gemm) or launch.scalars != scalar_args(gemm):
        raise InvalidRequest(f"the launch's tensors and scalars are not those of {gemm}")
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
    return {
        "kernel": kernel,
        "kernel_sha256": sha256(canonical(kernel)),
        "certificate": contents.certificate,
        "timings": contents.timings.to_json(),
    }


def _check_ranges(gemm: Gemm, members: Sequence[Gemm]) -> None:
    """Raise ValueError unless ``members`` are ``gemm`` over ranges of m that follow one another and make up its own."""
    if not 2 <= len(members) <= MAX_KERNELS:
        raise ValueError(f"a set has 2 to {MAX_KERNELS} kernels, not {len(members)}")
    low = gemm.m_min
    for member in members:
        if member.m_min != low or member != gemm.with_(m=Range(low, member.m_max)):
            raise ValueError(f"a kernel of {member} is where that of {gemm} from m = {low} on should be")
        low = member.m_max + 1
    if low != gemm.m_max + 1:
        raise ValueError(f"the last kernel ends at m = {low - 1}, the problem at {gemm.m_max}")


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
        return _set(document, regime, role) if version in _SETS else _kernel(document, regime, role)
    except IncompatibleArtifact:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, TirgemmError) as error:
        raise CorruptArtifact(f"the manifest is malformed: {error!s:.500}") from error


def _kernel(document: dict[str, Any], regime: Regime | None, role: Role | None) -> Manifest:
    """The manifest of one kernel."""
    kernel = document["kernel"]
    if sha256(canonical(kernel)) != document["kernel_sha256"]:
        raise ValueError("kernel_sha256 is not the hash of its kernel")
    certificate = document["certificate"]
    if not isinstance(document["timings"], dict) or not (certificate is None or isinstance(certificate, dict)):
        raise ValueError("certificate and timings are not objects")
    canonical([certificate, document["timings"]])
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
    if manifest.launch.tensors != tensor_args(manifest.gemm) or manifest.launch.scalars != scalar_args(manifest.gemm):
        raise ValueError("the launch's tensors and scalars are not those of its gemm")
    if not is_device_key(manifest.device.key):
        raise ValueError(f"its device would have the key {manifest.device.key!r:.200}")
    if not manifest.sources.keys().isdisjoint(FORMATS.values()):
        raise ValueError("a source is called as a binary is")
    return manifest


def _set(document: dict[str, Any], regime: Regime | None, role: Role | None) -> Manifest:
    """The manifest of a set."""
    if not isinstance(document["timings"], dict) or not isinstance(document["members"], list):
        raise ValueError("timings are not an object, or members are not a list")
    canonical(document["timings"])
    if not isinstance(document.get("sources_sha256", ""), str):
        raise ValueError("sources_sha256 is not a text")
    for member in document["members"]:
        if set(member) != _MEMBER:
            raise ValueError(f"the fields of a member are {', '.join(sorted(member))}")
    gemm = Gemm.from_json(document["gemm"])
    members = tuple(_kernel(member, regime, role) for member in document["members"])
    _check_ranges(gemm, [member.gemm for member in members])
    last = members[-1]
    if any((member.device, member.binary_format) != (last.device, last.binary_format) for member in members):
        raise ValueError("its kernels are for different devices")
    if set_sha256(gemm, [member.kernel_sha256 for member in members]) != document["kernel_sha256"]:
        raise ValueError("kernel_sha256 is not the hash of its kernels")
    return replace(
        last,
        gemm=gemm,
        kernel_sha256=document["kernel_sha256"],
        certificate=joined_certificate(document["kernel_sha256"], [member.certificate for member in members]),
        timings=Timings.from_json(document["timings"]),
        data=document,
        members=members,
    )


def _check_selection(regime: object, role: object, refuse: Callable[[str], Exception]) -> None:
    """Raise unless a kernel was selected in a regime and as a role, or neither is said."""
    if (regime, role) != (None, None) and not (regime in REGIMES and role in ROLES):
        raise refuse(
            f"regime is {regime!r:.80} and role {role!r:.80}; they must be one of {', '.join(REGIMES)} and of "
            f"{', '.join(ROLES)}, or both null"
        )
