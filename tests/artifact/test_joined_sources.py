"""Artifacts of large kernel sets, in which the sources of all kernels are one member: format 7."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import SIGNER, TRUST, operands, packed, packed_set
from tirgemm.artifact import export, load, read
from tirgemm.artifact import package as packages
from tirgemm.artifact.manifest import MAX_KERNELS, canonical, sha256
from tirgemm.errors import CorruptArtifact, InvalidRequest
from tirgemm.gemm import Gemm, Range
from tirgemm.tuning.kernel_set.partition import MOST_KERNELS

GEMM = Gemm(Range(1, 64), 9, 5, dtype="f32", align=4)


def texts_of(number: int) -> dict[str, str]:
    return {"kernel.ll": f"; kernel {number}, ä\n", "module.py": f"# kernel {number}\n"}


def a_set(kernels: int) -> bytes:
    members = {number: {"sources": texts_of(number)} for number in range(kernels)}
    return packed_set(GEMM, (*range(1, kernels), 64), members=members)


@functools.cache
def large() -> bytes:
    return a_set(MOST_KERNELS)


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def signed(files: dict[str, bytes], change: Callable[[dict[str, Any]], object]) -> bytes:
    """The files as an artifact, with the manifest changed and signed again."""
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    document = json.dumps(manifest, indent=1).encode() + b"\n"
    signature = packages._signature(SIGNER.public, SIGNER.sign(document))
    return packages._write(files | {"manifest.json": document, "signature.json": signature})


def with_sources(sources: bytes) -> bytes:
    """A large set with another file of sources, which its signed manifest names."""
    return signed(members_of(large()) | {"sources.json": sources}, lambda m: m.update(sources_sha256=sha256(sources)))


def test_the_sources_of_a_large_set_are_one_member_by_their_names() -> None:
    files = members_of(large())
    binaries = [f"{number}.kernel.so" for number in range(MOST_KERNELS)]
    assert list(files) == ["manifest.json", "signature.json", *binaries, "sources.json"]
    texts = {f"{i}.{name}": text for i in range(MOST_KERNELS) for name, text in texts_of(i).items()}
    assert files["sources.json"] == canonical(texts)
    manifest = json.loads(files["manifest.json"])
    assert (manifest["format"], manifest["sources_sha256"]) == (7, sha256(files["sources.json"]))


def test_a_large_set_is_written_and_read_byte_for_byte() -> None:
    assert large() == a_set(MOST_KERNELS)
    package = read(large(), TRUST)
    assert package.data == large()
    assert package.sources == texts_of(MOST_KERNELS - 1)
    assert len(package.binaries) == len(package.manifest.members) == MOST_KERNELS
    kernel = load(large(), trust=TRUST)
    for m in (1, 55, 56, 64):
        arrays, product = operands(GEMM, m)
        np.testing.assert_array_equal(kernel(**arrays), product)


def test_the_files_of_a_set_are_named_alike_whether_its_sources_are_one_member_or_not() -> None:
    small, many = read(a_set(3), TRUST), read(large(), TRUST)
    for package, count in ((small, 3), (many, MOST_KERNELS)):
        names = ("kernel.so", "kernel.ll", "module.py")
        assert [name for name, _, _ in package.files] == [f"{i}.{name}" for i in range(count) for name in names]
        listed = {name: (size, digest) for name, size, digest in package.files}
        for number, (member, binary) in enumerate(zip(package.manifest.members, package.binaries, strict=True)):
            assert listed[f"{number}.kernel.so"] == (len(binary), member.binary_sha256)
            for name, text in texts_of(number).items():
                assert listed[f"{number}.{name}"] == (len(text.encode()), sha256(text.encode()))
                assert member.sources[name] == sha256(text.encode())


def test_each_kernel_of_a_large_set_has_the_hash_that_it_has_in_a_small_one() -> None:
    small, many = (read(data, TRUST).manifest.members for data in (a_set(3), large()))
    assert [member.kernel_sha256 for member in many[:2]] == [member.kernel_sha256 for member in small[:2]]


def test_files_that_fit_what_older_readers_take_are_as_ever() -> None:
    files = members_of(a_set(42))
    assert (len(files), json.loads(files["manifest.json"])["format"]) == (128, 6)
    assert "sources.json" not in files
    assert "sources_sha256" not in json.loads(files["manifest.json"])
    assert (len(members_of(a_set(43))), read(a_set(43), TRUST).manifest.data["format"]) == (46, 7)
    texts = dict.fromkeys(("sources.json", *(f"{number}.cu" for number in range(200))), "[]")
    alone = read(packed(GEMM.with_(m=7), sources=texts), TRUST)
    assert (alone.manifest.data["format"], alone.sources, len(alone.files)) == (2, texts, 202)
    few = read(packed_set(GEMM, (9, 64), members={0: {"sources": {"sources.json": "[]"}}}), TRUST)
    assert [name for name, _, _ in few.files][:2] == ["0.kernel.so", "0.sources.json"]


def test_a_set_of_few_kernels_with_many_sources_has_them_in_one_member() -> None:
    texts = {f"{number}.cu": f"{number}" for number in range(300)}
    package = read(packed_set(GEMM, (9, 64), members={i: {"sources": texts} for i in range(2)}), TRUST)
    assert (package.manifest.data["format"], package.sources, len(package.files)) == (7, texts, 602)
    assert len(members_of(package.data)) == 5


def test_the_largest_set_that_is_read_keeps_its_sources() -> None:
    package = read(a_set(MAX_KERNELS), TRUST)
    assert (len(package.files), package.sources) == (3 * MAX_KERNELS, texts_of(MAX_KERNELS - 1))


def test_a_large_set_is_exported_with_its_manifest(tmp_path: Path) -> None:
    path = export(large(), tmp_path / "gemm.so", TRUST)
    assert members_of(large())["manifest.json"].decode().strip() in path.read_bytes().decode("latin-1")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda f: f.update({"sources.json": f["sources.json"].replace(b"kernel 7,", b"kernel 8,")}), "was changed"),
        (lambda f: f.update({"sources.json": b"[" * 100_000}), "sources.json of the artifact is not the one"),
        (lambda f: f.pop("sources.json"), "lacks sources.json"),
        (lambda f: f.update({"0.kernel.ll": b"; kernel 0\n"}), "holds 0.kernel.ll, which its manifest does not name"),
    ],
    ids=["changed", "nested", "missing", "separate, too"],
)
def test_sources_that_the_signature_does_not_cover_are_refused(
    edit: Callable[[dict[str, bytes]], object], words: str
) -> None:
    files = members_of(large())
    edit(files)
    with pytest.raises(CorruptArtifact, match=words):
        read(packages._write(files), TRUST)


def test_nothing_is_read_as_json_that_the_signature_does_not_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    files = members_of(large()) | {"sources.json": b"{}"}
    monkeypatch.setattr(packages, "_separate", lambda *_: pytest.fail("the sources were read"))
    with pytest.raises(CorruptArtifact, match=r"sources\.json of the artifact is not the one"):
        read(packages._write(files), TRUST)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda s: s | {"3.kernel.ll": "; other\n"}, "3.kernel.ll of the artifact is not the one that its manifest"),
        (lambda s: {name: s[name] for name in s if name != "3.module.py"}, "lacks 3.module.py, which its manifest"),
        (lambda s: s | {"3.more.txt": ""}, "holds '3.more.txt', which its manifest does not name"),
        (lambda s: s | {"../evil": ""}, "holds '../evil', which its manifest does not name"),
        (lambda s: s | {"3.kernel.ll": 7}, "no object of texts"),
        (lambda s: s | {"3.kernel.ll": "\ud800"}, "malformed"),
        (list, "no object of texts"),
    ],
    ids=["changed", "missing", "unknown", "path", "number", "surrogate", "list"],
)
def test_sources_that_the_manifest_of_a_kernel_does_not_name_are_refused(
    edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    sources = canonical(edit(json.loads(members_of(large())["sources.json"])))
    with pytest.raises(CorruptArtifact, match=words):
        read(with_sources(sources), TRUST)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.replace(b'","', b'", "', 1),
        lambda data: data + b"\n",
        lambda data: json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(),
        lambda data: json.dumps(dict(reversed(json.loads(data).items())), separators=(",", ":")).encode(),
        lambda data: b'{"0.kernel.ll":"; first\\n",' + data[1:],
        lambda data: data[:-1],
        lambda data: data[:0],
        lambda data: b"[" * len(data),
        lambda data: b"\xff" + data,
    ],
    ids=["spaces", "end", "UTF-8", "order", "a name twice", "cut", "empty", "nested", "no text"],
)
def test_sources_that_are_not_written_as_they_are_packed_are_refused(edit: Callable[[bytes], bytes]) -> None:
    sources = edit(members_of(large())["sources.json"])
    with pytest.raises(CorruptArtifact, match=r"sources\.json of the artifact is malformed"):
        read(with_sources(sources), TRUST)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop("sources_sha256"), "its fields are"),
        (lambda m: m.update(format=6), "its fields are"),
        (lambda m: m.update(sources_sha256=None), "sources_sha256 is not a text"),
        (lambda m: m.update(sources_sha256=7), "sources_sha256 is not a text"),
        (lambda m: m.update(sources_sha256="0" * 64), "sources.json of the artifact is not the one"),
    ],
)
def test_a_manifest_whose_hash_of_the_sources_is_wrong_is_refused(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(CorruptArtifact, match=words):
        read(signed(members_of(large()), change), TRUST)


def test_a_name_that_a_member_may_not_have_is_refused_in_a_large_set_too() -> None:
    members = {number: {"sources": {"../evil.py": ""}} for number in range(MOST_KERNELS)}
    with pytest.raises(InvalidRequest, match="not a plain file name"):
        packed_set(GEMM, (*range(1, MOST_KERNELS), 64), members=members)
