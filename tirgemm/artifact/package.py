"""The ``.tirgemm`` file: a deterministic ZIP of manifest, signature, binary and sources.

Members are stored, in one order, with one time stamp: the same kernel gives the same bytes. Reading is strict in turn.
What was read is written again and must come out byte for byte, so that nothing in the file, not even in the ZIP's own
headers, can differ from what ``pack`` writes; hashes and signature then cover every member.
"""

from __future__ import annotations

import io
import json
import re
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tirgemm.artifact import manifest as manifests
from tirgemm.artifact.manifest import FORMATS, Contents, Manifest, check_binary, sha256
from tirgemm.artifact.sign import decode, encode
from tirgemm.artifact.trust import Trust, trusted
from tirgemm.errors import ArtifactError, CorruptArtifact, InvalidRequest, UntrustedArtifact

MAX_BYTES = 256 << 20
_MANIFEST, _SIGNATURE = "manifest.json", "signature.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = stat.S_IFREG | 0o644


class Signs(Protocol):
    """What signs a package: a Signer, or whatever holds its key elsewhere."""

    @property
    def public(self) -> str: ...

    def sign(self, data: bytes) -> bytes: ...


@dataclass(frozen=True)
class Package:
    """A verified artifact: every byte of it is covered by a trusted signature.

    ``data`` is the whole file and ``sha256`` its hash.
    """

    manifest: Manifest
    manifest_bytes: bytes
    binary: bytes
    sources: dict[str, str]
    key: str
    sha256: str
    data: bytes = field(repr=False)


def pack(contents: Contents, signer: Signs) -> bytes:
    """The bytes of a signed artifact; the same for the same input and key. Raises InvalidRequest."""
    reserved = {_MANIFEST, _SIGNATURE, *FORMATS.values()}
    for name in contents.sources:
        if not _NAME.fullmatch(name) or name in reserved:
            raise InvalidRequest(
                f"source name {name!r:.120} is reserved, or not a plain file name of letters, digits, _ . -"
            )
    texts = {name: text.encode() for name, text in sorted(contents.sources.items())}
    document = manifests.write(contents)
    signature = _signature(signer.public, signer.sign(document))
    data = _write(
        {_MANIFEST: document, _SIGNATURE: signature, FORMATS[contents.binary_format]: contents.binary, **texts}
    )
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"the artifact has {len(data):,} bytes; the limit is {MAX_BYTES:,}")
    return data


def read(data: bytes | Path | str, trust: Trust | None = None) -> Package:
    """The verified contents of an artifact, given as bytes or as a path; ``trust`` is the user's trust file by default.

    Raises UntrustedArtifact for a key that is not trusted, CorruptArtifact for everything that ``pack`` did not write,
    IncompatibleArtifact for a format that only a newer tirgemm reads.
    """
    if isinstance(data, bytes):
        return _read(data, trust)
    try:
        return _read(read_file(Path(data)), trust)
    except ArtifactError as error:
        raise type(error)(f"{data}: {error}") from error


def _read(data: bytes, trust: Trust | None) -> Package:
    members = _members(data)
    for name in (_MANIFEST, _SIGNATURE):
        if name not in members:
            raise CorruptArtifact(f"the artifact lacks {name}")
    key, signature = _read_signature(members[_SIGNATURE])
    trusted(trust).check(key, signature, members[_MANIFEST])
    manifest = manifests.read(members[_MANIFEST])
    binary_name = FORMATS[manifest.binary_format]
    expected = [_MANIFEST, _SIGNATURE, binary_name, *sorted(manifest.sources)]
    for name in (*expected, *members):
        if name not in members:
            raise CorruptArtifact(f"the artifact lacks {name}, which its manifest names")
        if name not in expected:
            raise CorruptArtifact(f"the artifact holds {name}, which its manifest does not name")
    for name, digest in {binary_name: manifest.binary_sha256, **manifest.sources}.items():
        if sha256(members[name]) != digest:
            raise CorruptArtifact(f"{name} of the artifact is not the one that its manifest names: it was changed")
    if _write({name: members[name] for name in expected}) != data:
        raise CorruptArtifact("the artifact's ZIP headers are not those that tirgemm writes: the file was changed")
    try:
        check_binary(members[binary_name], manifest.binary_format)
        sources = {name: members[name].decode() for name in manifest.sources}
    except ValueError as error:
        raise CorruptArtifact(str(error)) from error
    return Package(manifest, members[_MANIFEST], members[binary_name], sources, key, sha256(data), data)


def signing_key(data: bytes) -> str:
    """The key that an artifact says signed it, believed or not. Raises CorruptArtifact, UntrustedArtifact for none."""
    members = _members(data)
    if _SIGNATURE not in members:
        raise CorruptArtifact(f"the artifact lacks {_SIGNATURE}")
    return _read_signature(members[_SIGNATURE])[0]


def read_file(path: Path) -> bytes:
    """The bytes of an artifact file, read once. Raises InvalidRequest or CorruptArtifact."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"artifact {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise CorruptArtifact(f"artifact {path} has more than {MAX_BYTES:,} bytes")
    return data


def _signature(key: str, signature: bytes) -> bytes:
    return json.dumps({"key": key, "signature": encode(signature)}, indent=1).encode("ascii") + b"\n"


def _read_signature(data: bytes) -> tuple[str, bytes]:
    """Key and signature; exactly what ``_signature`` writes, as base64 has several texts for the same bytes."""
    try:
        document = json.loads(data)
        key, signature = document["key"], decode(document["signature"], 64)
        if not isinstance(key, str) or _signature(key, signature) != data:
            raise ValueError("it is not written as tirgemm writes it")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedArtifact(f"{_SIGNATURE} of the artifact holds no signature: {error}") from error
    return key, signature


def _write(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system = 3
            info.external_attr = _MODE << 16
            archive.writestr(info, content)
    return out.getvalue()


def _members(data: bytes) -> dict[str, bytes]:
    """The members of a ZIP that holds nothing but plain, stored files. Raises CorruptArtifact."""
    if len(data) > MAX_BYTES:
        raise CorruptArtifact(f"the artifact has {len(data):,} bytes; the limit is {MAX_BYTES:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members: dict[str, bytes] = {}
            for info in archive.infolist():
                _check_member(info, len(data), members)
                members[info.filename] = archive.read(info)
            return members
    except CorruptArtifact:
        raise
    except (
        Exception
    ) as error:  # zipfile raises a dozen types on damaged files: struct.error, EOFError, RuntimeError ...
        raise CorruptArtifact(f"the file is damaged or not a .tirgemm artifact: {error}") from error


def _check_member(info: zipfile.ZipInfo, size: int, before: Mapping[str, bytes]) -> None:
    name = info.filename
    if not _NAME.fullmatch(name):
        raise CorruptArtifact(f"member {name!r:.120} of the artifact is not a plain file name")
    if name in before:
        raise CorruptArtifact(f"member {name} occurs twice in the artifact")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise CorruptArtifact(f"member {name} of the artifact is a link or a device, not a file")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise CorruptArtifact(f"member {name} of the artifact is compressed or encrypted; members are stored")
    if info.file_size > size or info.file_size != info.compress_size:
        raise CorruptArtifact(f"member {name} of the artifact claims {info.file_size:,} bytes in a file of {size:,}")
