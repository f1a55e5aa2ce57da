"""The ``.tirgemm`` file: a deterministic ZIP of manifest, signature, binaries and sources.

Members are stored, in one order, with one time stamp: the same kernel gives the same bytes. Reading is strict in turn.
What was read is written again and must come out byte for byte, so that nothing in the file, not even in the ZIP's own
headers, can differ from what ``pack`` writes; hashes and signature then cover every member. Of a kernel set the binary
and the sources of each kernel have its number before their names (``0.kernel.so``). The sources of a large set are one
member, ``sources.json``: their texts by those names.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tirgemm.artifact import manifest as manifests
from tirgemm.artifact.manifest import FORMATS, Contents, Manifest, SetContents, canonical, check_binary, sha256
from tirgemm.artifact.regular_file import read_regular
from tirgemm.artifact.sign import decode, encode, public_bytes
from tirgemm.artifact.trust import Trust, trusted
from tirgemm.errors import ArtifactError, CorruptArtifact, InvalidRequest, RevokedKernel, UntrustedArtifact

MAX_BYTES = 256 << 20
# As many as the largest set of kernels has, with four sources each, and more.
MAX_MEMBERS = 384
MAX_MANIFEST_BYTES = 16 << 20
# A set that would have more with a member for each source has them in one: readers before format 6 take so many, and
# call a file of more damaged instead of newer.
_MOST_SEPARATE = 128
_MANIFEST, _SIGNATURE, _SOURCES = "manifest.json", "signature.json", "sources.json"
_LIMITS = {_MANIFEST: MAX_MANIFEST_BYTES, _SIGNATURE: 1024}
# The end of the central directory (APPNOTE 4.3.16), how far before the end it may begin, and its longest entry.
_END = struct.Struct("<4s4H2LH")
_END_REACH = _END.size + (1 << 16)
_ENTRY_BYTES = 46 + 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = stat.S_IFREG | 0o644


# The bytes of an artifact, or the path of its file.
ArtifactData: TypeAlias = bytes | bytearray | memoryview | Path | str


class Signs(Protocol):
    """What signs a package: a Signer, or whatever holds its key elsewhere."""

    @property
    def public(self) -> str: ...

    def sign(self, data: bytes) -> bytes: ...


@dataclass(frozen=True)
class Package:
    """A verified artifact: every byte of it is covered by a trusted signature.

    ``data`` is the whole file and ``sha256`` its hash. ``binaries`` are those of the manifest's ``kernels``;
    ``sources`` of a set those of its last one, as the manifest's are. ``files`` has name, bytes and SHA-256 of every
    binary and source, in the manifest's order.
    """

    manifest: Manifest
    manifest_bytes: bytes
    binaries: tuple[bytes, ...]
    sources: dict[str, str]
    files: tuple[tuple[str, int, str], ...]
    key: str
    sha256: str
    data: bytes = field(repr=False)

    @property
    def binary(self) -> bytes:
        """The machine code; of a set that of its last kernel, which the manifest's binary is."""
        return self.binaries[-1]


def pack(contents: Contents | SetContents, signer: Signs) -> bytes:
    """The bytes of a signed artifact; the same for the same input and key. Raises InvalidRequest."""
    kernels = contents.members if isinstance(contents, SetContents) else (contents,)
    reserved = {_MANIFEST, _SIGNATURE, *FORMATS.values()}
    files: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    for prefix, kernel in zip(_prefixes(len(kernels)), kernels, strict=True):
        for name in kernel.sources:
            if not _NAME.fullmatch(prefix + name) or name in reserved:
                raise InvalidRequest(
                    f"source name {name!r:.120} is reserved, or not a plain file name of letters, digits, _ . -"
                )
        if kernel.binary_format in FORMATS:  # else the manifest says what is wrong
            files[prefix + FORMATS[kernel.binary_format]] = kernel.binary
        texts |= {prefix + name: text for name, text in kernel.sources.items()}
        files |= {prefix + name: text.encode() for name, text in sorted(kernel.sources.items())}
    joined = None
    if isinstance(contents, SetContents) and 2 + len(files) > _MOST_SEPARATE:
        joined = canonical(texts)
        files = {name: content for name, content in files.items() if name not in texts} | {_SOURCES: joined}
    document = manifests.write(contents, None if joined is None else sha256(joined))
    signature = _signature(signer.public, signer.sign(document))
    data = _write({_MANIFEST: document, _SIGNATURE: signature, **files})
    for what, size, limit in (
        ("bytes", len(data), MAX_BYTES),
        ("bytes of manifest", len(document), MAX_MANIFEST_BYTES),
        ("members", 2 + len(files), MAX_MEMBERS),
    ):
        if size > limit:
            raise InvalidRequest(f"the artifact has {size:,} {what}; the limit is {limit:,}")
    return data


def read(data: ArtifactData, trust: Trust | None = None) -> Package:
    """The verified contents of an artifact, given as bytes or as a path; ``trust`` is the user's trust file by default.

    Raises UntrustedArtifact for a key that is not trusted, RevokedArtifact for what a known list revokes,
    CorruptArtifact for everything that ``pack`` did not write, IncompatibleArtifact for a format that only a newer
    tirgemm reads, InvalidRequest for what is neither.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return _read(bytes(data), trust)
    if not isinstance(data, str | os.PathLike):
        raise InvalidRequest(f"artifact is a {type(data).__name__}; give its bytes, or the path of its file")
    try:
        return _read(read_file(Path(data)), trust)
    except ArtifactError as error:
        raise type(error)(f"{data}: {error}") from error


def _read(data: bytes, trust: Trust | None) -> Package:
    archive, digest = _Archive(data), sha256(data)
    trust = trusted(trust)
    document = _trusted_manifest(archive, trust)
    trust.revocations.refuse("the artifact", digest)
    manifest = manifests.read(document)
    for kernel in (manifest, *manifest.members):
        trust.revocations.refuse("the kernel", kernel.kernel_sha256, RevokedKernel)
    prefixes = _prefixes(len(manifest.kernels))
    binary_names = [prefix + FORMATS[manifest.binary_format] for prefix in prefixes]
    digests: dict[str, str] = {}
    for prefix, binary_name, kernel in zip(prefixes, binary_names, manifest.kernels, strict=True):
        digests[binary_name] = kernel.binary_sha256
        digests |= {prefix + name: kernel.sources[name] for name in sorted(kernel.sources)}
    stored = digests
    if manifest.sources_sha256 is not None:
        stored = {name: digests[name] for name in binary_names} | {_SOURCES: manifest.sources_sha256}
    expected = [_MANIFEST, _SIGNATURE, *stored]
    for name in (*expected, *archive.names):
        if name not in archive.names:
            raise CorruptArtifact(f"the artifact lacks {name:.200}, which its manifest names")
        if name not in expected:
            raise CorruptArtifact(f"the artifact holds {name}, which its manifest does not name")
    members = {name: archive.read(name) for name in expected}
    for name, named in stored.items():
        if sha256(members[name]) != named:
            raise CorruptArtifact(f"{name} of the artifact is not the one that its manifest names: it was changed")
    if _write(members) != data:
        raise CorruptArtifact("the artifact's ZIP headers are not those that tirgemm writes: the file was changed")
    binaries = tuple(members[name] for name in binary_names)
    if manifest.sources_sha256 is not None:
        members |= _separate(members.pop(_SOURCES), {n: sha for n, sha in digests.items() if n not in binary_names})
    try:
        for binary in binaries:
            check_binary(binary, manifest.binary_format)
        texts = {name: members[name].decode() for name in digests if name not in binary_names}
    except ValueError as error:
        raise CorruptArtifact(str(error)) from error
    sources = {name: texts[prefixes[-1] + name] for name in manifest.sources}
    key, _ = _read_signature(members[_SIGNATURE])
    files = tuple((name, len(members[name]), named) for name, named in digests.items())
    return Package(manifest, document, binaries, sources, files, key, digest, data)


def _separate(data: bytes, digests: Mapping[str, str]) -> dict[str, bytes]:
    """The sources that are one member, by their names; exactly those of ``digests``, as ``pack`` writes them. Raises
    CorruptArtifact."""
    try:
        texts = json.loads(data)
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("it is no object of texts")
        if canonical(texts) != data:
            raise ValueError("it is not written as tirgemm writes it")
        sources = {name: text.encode() for name, text in texts.items()}
    except (ValueError, RecursionError) as error:
        raise CorruptArtifact(f"{_SOURCES} of the artifact is malformed: {error}") from error
    for name in (*digests, *sources):
        if name not in sources:
            raise CorruptArtifact(f"{_SOURCES} of the artifact lacks {name}, which its manifest names")
        if name not in digests:
            raise CorruptArtifact(f"{_SOURCES} of the artifact holds {name!r:.120}, which its manifest does not name")
        if sha256(sources[name]) != digests[name]:
            raise CorruptArtifact(f"{name} of the artifact is not the one that its manifest names: it was changed")
    return sources


def _prefixes(kernels: int) -> tuple[str, ...]:
    """What stands before the names of each kernel's files."""
    return ("",) if kernels == 1 else tuple(f"{number}." for number in range(kernels))


def _trusted_manifest(archive: _Archive, trust: Trust) -> bytes:
    """The bytes of the manifest, which a trusted key signed; of a stranger's artifact only the signature is read."""
    key, signature = _read_signature(archive.read(_SIGNATURE))
    trust.check_key(key)
    document = archive.read(_MANIFEST)
    trust.check(key, signature, document)
    return document


def signing_key(data: bytes) -> str:
    """The key that an artifact says signed it, believed or not. Raises CorruptArtifact, UntrustedArtifact for none."""
    return _read_signature(_Archive(data).read(_SIGNATURE))[0]


def revocable_names(data: bytes) -> frozenset[str]:
    """What a list of revocations may name an artifact by, believed or not: its hash, those of its kernels, and the key
    that signed it. Raises ArtifactError for none."""
    manifest = manifests.read(_Archive(data).read(_MANIFEST))
    kernels = (kernel.kernel_sha256 for kernel in (manifest, *manifest.members))
    return frozenset((sha256(data), signing_key(data), *kernels))


def unverified_manifest(data: bytes) -> dict[str, Any]:
    """The document of an artifact's manifest, whoever signed it and whether it is true or not: to be shown, no more.
    Raises CorruptArtifact where there is none."""
    try:
        document = json.loads(_Archive(data).read(_MANIFEST))
    except (ValueError, RecursionError) as error:
        raise CorruptArtifact(f"the manifest is malformed: {error}") from error
    if not isinstance(document, dict):
        raise CorruptArtifact("the manifest is malformed: it is no object")
    return document


def read_file(path: Path) -> bytes:
    """The bytes of an artifact file, read once. Raises InvalidRequest or CorruptArtifact."""
    try:
        data = read_regular(path, MAX_BYTES)
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
        public_bytes(key)
        if _signature(key, signature) != data:
            raise ValueError("it is not written as tirgemm writes it")
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # InvalidRequest is a ValueError
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


class _Archive:
    """A ZIP that holds nothing but plain, stored files, each read when it is asked for. Raises CorruptArtifact.

    Its directory is bounded before it is read, and its members are no larger together than the file: they cannot
    overlap, so that reading all of them costs no more than the file once more.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise CorruptArtifact(f"the artifact has {len(data):,} bytes; the limit is {MAX_BYTES:,}")
        _check_directory(data)
        with _as_corrupt():
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            self._members: dict[str, zipfile.ZipInfo] = {}
            for info in self._zip.infolist():
                _check_member(info, self._members)
                self._members[info.filename] = info
        total = sum(info.file_size for info in self._members.values())
        if total > len(data):
            raise CorruptArtifact(f"the artifact's members claim {total:,} bytes in a file of {len(data):,}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def read(self, name: str) -> bytes:
        if name not in self._members:
            raise CorruptArtifact(f"the artifact lacks {name}")
        with _as_corrupt():
            return self._zip.read(self._members[name])


@contextmanager
def _as_corrupt() -> Iterator[None]:
    """CorruptArtifact for what zipfile raises on damaged files: struct.error, EOFError, RuntimeError, ..."""
    try:
        yield
    except CorruptArtifact:
        raise
    except Exception as error:
        raise CorruptArtifact(f"the file is damaged or not a .tirgemm artifact: {error!s:.200}") from error


def _check_directory(data: bytes) -> None:
    """Refuse a central directory that is not the last thing of the file, or is longer than MAX_MEMBERS entries are.

    zipfile would read all of it, whatever it is: one of 256 MiB makes gigabytes of entries.
    """
    end = data[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\5\6"):
        if b"PK\5\6" in data[-_END_REACH:]:
            raise CorruptArtifact("the artifact's ZIP headers are not those that tirgemm writes: more follows them")
        raise CorruptArtifact("the file is damaged or not a .tirgemm artifact: it does not end as a ZIP does")
    *_, entries, size, offset, _comment = _END.unpack(end)
    if entries > MAX_MEMBERS or size > MAX_MEMBERS * _ENTRY_BYTES:
        raise CorruptArtifact(
            f"the artifact lists {entries:,} members in {size:,} bytes; the limit is {MAX_MEMBERS} members"
        )
    if offset + size + _END.size != len(data) or data[-_END.size - 20 :].startswith(b"PK\6\7"):
        raise CorruptArtifact("the artifact's ZIP headers are not those that tirgemm writes: the file was changed")


def _check_member(info: zipfile.ZipInfo, before: Mapping[str, zipfile.ZipInfo]) -> None:
    name = info.filename
    if not _NAME.fullmatch(name):
        raise CorruptArtifact(f"member {name!r:.120} of the artifact is not a plain file name")
    if name in before:
        raise CorruptArtifact(f"member {name} occurs twice in the artifact")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise CorruptArtifact(f"member {name} of the artifact is a link or a device, not a file")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise CorruptArtifact(f"member {name} of the artifact is compressed or encrypted; members are stored")
    limit = _LIMITS.get(name, MAX_BYTES)
    if info.file_size != info.compress_size or info.file_size > limit:
        raise CorruptArtifact(
            f"member {name} of the artifact claims {info.file_size:,} bytes, stored as {info.compress_size:,}; the "
            f"limit is {limit:,}"
        )
