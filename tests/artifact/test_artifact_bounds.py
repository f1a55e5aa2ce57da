"""Hostile artifact files: what they cost before their key is known is bounded by what they weigh."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable

import pytest

from tests.helpers.artifact_samples import TRUST, packed
from tirgemm.artifact import Signer, Trust, read
from tirgemm.artifact import package as packages
from tirgemm.errors import ArtifactError, CorruptArtifact, InvalidRequest, UntrustedArtifact
from tirgemm.gemm import Gemm
from tirgemm.timings import Timings

GEMM = Gemm(7, 9, 5, dtype="f32", align=4)
STRANGER = Signer.generate()


def peak(call: Callable[[], object]) -> int:
    """The most bytes that Python held at once during ``call``, above what it held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def overlapping(count: int, size: int) -> bytes:
    """A file of ``count`` stored members, each of which holds the headers of all that follow and the same ``size``
    bytes, signed by a stranger."""
    manifest = b"{}"
    signature = packages._signature(STRANGER.public, STRANGER.sign(manifest))
    body, entries = bytes(size), []
    for number in reversed(range(count)):
        body = local_header(f"m{number:04}", body) + body
        entries.append((f"m{number:04}", body[35:], len(body)))
    front = b""
    for name, content in (("manifest.json", manifest), ("signature.json", signature)):
        front += local_header(name, content) + content
    size_of_all = len(front) + len(body)
    offsets = [0, len(front) - len(signature) - 30 - len("signature.json")]
    listed = [("manifest.json", manifest, offsets[0]), ("signature.json", signature, offsets[1])]
    listed += [(name, content, size_of_all - behind) for name, content, behind in reversed(entries)]
    directory = b""
    for name, content, offset in listed:
        fields = (20, 20, 0, 0, 0, 33, zlib.crc32(content), len(content), len(content), len(name), 0, 0, 0, 0, 0)
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields, offset) + name.encode()
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(listed), len(listed), len(directory), size_of_all, 0)
    return front + body + directory + end


def local_header(name: str, content: bytes) -> bytes:
    fields = (20, 0, 0, 0, 33, zlib.crc32(content), len(content), len(content), len(name), 0)
    return struct.pack("<4s5H3L2H", b"PK\3\4", *fields) + name.encode()


@pytest.mark.parametrize("count", [3, 60, 500])
def test_overlapping_members_of_a_stranger_cost_no_more_than_the_file(count: int) -> None:
    data = overlapping(count, 900_000)

    def attack() -> None:
        with pytest.raises(ArtifactError):
            read(data, TRUST)

    assert peak(attack) < 2 * len(data)


def test_nothing_but_the_signature_is_read_before_the_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    whole = zipfile.ZipFile.read

    def spy(self: zipfile.ZipFile, member: zipfile.ZipInfo, pwd: bytes | None = None) -> bytes:
        opened.append(member.filename)
        return whole(self, member, pwd)

    monkeypatch.setattr(zipfile.ZipFile, "read", spy)
    with pytest.raises(UntrustedArtifact):
        read(packed(GEMM, signer=STRANGER), TRUST)
    assert opened == ["signature.json"]
    opened.clear()
    forged = json.loads(read(packed(GEMM), TRUST).manifest_bytes) | {"timings": {}}
    content = {"manifest.json": json.dumps(forged).encode()}
    with zipfile.ZipFile(io.BytesIO(packed(GEMM))) as archive:
        kept = {info.filename: archive.read(info) for info in archive.infolist()}
    opened.clear()
    with pytest.raises(CorruptArtifact, match="changed after signing"):
        read(packages._write(kept | content), TRUST)
    assert opened == ["signature.json", "manifest.json"]


@pytest.mark.parametrize("count", [385, 40_000])
def test_a_long_directory_is_not_read(count: int) -> None:
    data = packages._write({f"m{n}": b"" for n in range(count)})

    def attack() -> None:
        with pytest.raises(CorruptArtifact, match="the limit is 384 members"):
            read(data, TRUST)

    assert peak(attack) < 200_000


def test_a_directory_behind_a_zip64_record_is_not_read() -> None:
    data = packed(GEMM)
    end, record = data[-22:], struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 9, 9, len(data), 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1)
    hidden = struct.pack("<L", struct.unpack("<L", end[12:16])[0] + len(record) + len(locator))
    with pytest.raises(CorruptArtifact, match="ZIP headers"):
        read(data[:-22] + record + locator + end[:12] + hidden + end[16:], TRUST)


@pytest.mark.parametrize(("name", "size"), [("signature.json", 1025), ("manifest.json", (16 << 20) + 1)])
def test_what_is_read_before_trust_is_small(name: str, size: int) -> None:
    members = {"manifest.json": b"{}", "signature.json": b"{}"} | {name: b"[" * size}
    with pytest.raises(CorruptArtifact, match=f"member {name} of the artifact claims {size:,} bytes"):
        read(packages._write(members), TRUST)


def test_what_pack_refuses_is_what_read_refuses() -> None:
    with pytest.raises(InvalidRequest, match="the limit is 384"):
        packed(GEMM, sources={f"s{n}": "" for n in range(382)})
    assert len(read(packed(GEMM, sources={f"s{n}": "" for n in range(381)}), TRUST).sources) == 381
    with pytest.raises(InvalidRequest, match="bytes of manifest; the limit is"):
        packed(GEMM, timings=Timings(other={"note": "x" * (16 << 20)}))


@pytest.mark.parametrize("key", ["ed25519:\x1b[2Jgone", "\x1b]0;title\x07", 7, None, "ed25519:AAAA"])
def test_a_key_that_is_none_is_not_repeated_to_the_terminal(key: object) -> None:
    signature = json.dumps({"key": key, "signature": "A" * 86 + "=="}, indent=1).encode() + b"\n"
    data = packages._write({"manifest.json": b"{}", "signature.json": signature})
    with pytest.raises(UntrustedArtifact) as caught:
        read(data, Trust.of())
    assert "\x1b" not in str(caught.value)
