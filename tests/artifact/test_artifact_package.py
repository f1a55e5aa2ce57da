"""The .tirgemm file: the same bytes for the same kernel, and nothing read that was not written so."""

from __future__ import annotations

import io
import json
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.artifact_samples import (
    CONFIG,
    SIGNER,
    TIMINGS,
    TRUST,
    cpu,
    fake_cubin,
    packed,
    rows_binary,
    rows_launch,
)
from tests.present_timings import timing_of
from tirgemm.artifact import Signer, Trust, load, read
from tirgemm.artifact import package as packages
from tirgemm.errors import ArtifactError, CorruptArtifact, IncompatibleArtifact, InvalidRequest, UntrustedArtifact
from tirgemm.expr import Dim, M, minimum
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch, TensorMap, tensor_args
from tirgemm.timings import Timings

GEMM = Gemm(7, 9, 5, dtype="f32", align=4)
ARTIFACT = packed(GEMM)

Edit = Callable[[dict[str, bytes]], None]


def members(data: bytes = ARTIFACT) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def signed(manifest: Any, signer: Signer = SIGNER) -> dict[str, bytes]:
    """Manifest and signature members for an edited manifest."""
    data = manifest if isinstance(manifest, bytes) else json.dumps(manifest, indent=1).encode() + b"\n"
    return {"manifest.json": data, "signature.json": packages._signature(signer.public, signer.sign(data))}


def edited(change: Callable[[dict[str, Any]], object], signer: Signer = SIGNER) -> bytes:
    """The sample artifact with its manifest changed, hashed again and signed again."""
    from tirgemm.artifact.manifest import canonical, sha256

    parts = members()
    manifest = json.loads(parts["manifest.json"])
    change(manifest)
    if isinstance(manifest.get("kernel"), dict):
        manifest["kernel_sha256"] = sha256(canonical(manifest["kernel"]))
    return packages._write(parts | signed(manifest, signer))


@pytest.mark.parametrize(
    "change",
    [
        lambda kernel: kernel["device"].update(model=None),
        lambda kernel: kernel["device"].update(features=[5]),
        lambda kernel: kernel["device"].update(arch="\x1b[2J"),
        lambda kernel: kernel["sources"].update({"kernel.so": kernel["binary"]["sha256"]}),
        lambda kernel: kernel["launch"]["kernels"][0].update(block=["1", 1, 1]),
        lambda kernel: kernel["launch"]["kernels"][0].update(block=[1, 1], cluster=[1, 1, 1, 1]),
        lambda kernel: kernel["launch"]["kernels"][0].update(shared_bytes="0"),
        lambda kernel: kernel["launch"]["kernels"][0].update(symbol=[]),
    ],
)
def test_a_manifest_with_fields_of_another_type_is_malformed(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(CorruptArtifact, match="the manifest is malformed"):
        read(edited(lambda manifest: change(manifest["kernel"])), TRUST)


@pytest.mark.parametrize("change", [{"certificate": {"tests": [float("nan")]}}, {"timings": {"x": float("inf")}}])
def test_a_manifest_with_what_json_has_not_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptArtifact, match="the manifest is malformed"):
        read(edited(lambda manifest: manifest.update(change)), TRUST)


def test_an_error_about_a_manifest_is_no_longer_than_can_be_read() -> None:
    for change in (
        lambda manifest: manifest["kernel"]["gemm"].update(act="x" * 100_000),
        lambda manifest: manifest["kernel"]["sources"].update({"x" * 100_000: "0" * 64}),
    ):
        with pytest.raises(CorruptArtifact) as refused:
            read(edited(change), TRUST)
        assert len(str(refused.value)) < 1000


def test_what_was_packed_is_read_back() -> None:
    certificate = {"kernel_sha256": "0", "passed": True, "tests": [{"error": 0.25}]}
    package = read(packed(GEMM, certificate=certificate), TRUST)
    manifest = package.manifest
    assert (manifest.gemm, manifest.config, manifest.device) == (GEMM, CONFIG, cpu())
    assert manifest.launch == rows_launch(GEMM)
    assert (manifest.certificate, manifest.flags) == (certificate, ("-O1",))
    assert manifest.timings == TIMINGS
    assert (manifest.regime, manifest.role) == (None, None)
    served = read(packed(GEMM, regime="isolated", role="fallback"), TRUST).manifest
    assert (served.regime, served.role, served.kernel_sha256) == ("isolated", "fallback", manifest.kernel_sha256)
    assert package.binary == rows_binary(GEMM)
    assert package.sources == {"kernel.ll": "; text\n", "module.py": "# text\n"}
    assert package.key == SIGNER.public


def test_the_same_kernel_gives_the_same_bytes_and_any_change_another_hash() -> None:
    reordered = packed(GEMM, sources={"module.py": "# text\n", "kernel.ll": "; text\n"})
    assert packed(GEMM) == ARTIFACT == reordered
    kernel = read(ARTIFACT, TRUST).manifest.kernel_sha256
    later = read(packed(GEMM, certificate={"passed": True}, timings=Timings()), TRUST)
    assert later.manifest.kernel_sha256 == kernel
    assert later.sha256 != read(ARTIFACT, TRUST).sha256
    for change in ({"flags": ("-O2",)}, {"sources": {"kernel.ll": ";\n"}}, {"config": CONFIG.with_(rows=2)}):
        assert read(packed(GEMM, **change), TRUST).manifest.kernel_sha256 != kernel


def test_an_artifact_is_a_zip_that_anyone_can_open() -> None:
    with zipfile.ZipFile(io.BytesIO(ARTIFACT)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "signature.json", "kernel.so", "kernel.ll", "module.py"]
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"binary": b"extern C __global__ void gemm() {}", "binary_format": "cubin"}, "not an ELF file"),
        ({"binary": b"\x7fELF" + bytes(60), "binary_format": "cubin"}, "ELF file for machine 0"),
        ({"binary": fake_cubin(), "binary_format": "so"}, "binary format is 'so'"),
    ],
)
def test_source_in_place_of_a_cubin_is_never_packed(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        packed(GEMM, device=named_device("sm_90a"), **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sources": {"../evil.py": ""}}, "not a plain file name"),
        ({"sources": {"manifest.json": ""}}, "reserved"),
        ({"launch": rows_launch(Gemm(8, 9, 5, dtype="f32", align=4))}, "not those of 7x9x5"),
        ({"timings": Timings(predicted_us=float("nan"))}, "cannot be packed"),
        ({"certificate": {"at": object()}}, "cannot be packed"),
        ({"binary": fake_cubin()}, "machine 190"),
        ({"regime": "sustained"}, "role None"),
        ({"regime": "fast", "role": "tuned"}, "regime is 'fast'"),
        ({"regime": "sustained", "role": "best"}, "role 'best'"),
    ],
)
def test_a_kernel_that_contradicts_itself_is_not_packed(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        packed(GEMM, **change)


def test_a_manifest_signed_again_by_a_stranger_is_refused() -> None:
    stranger = Signer.generate()
    forged = edited(lambda manifest: manifest.update(timings={"sustained": {"median_us": 0.1}}), stranger)
    with pytest.raises(UntrustedArtifact, match=f"signed by {stranger.public.replace('+', '[+]')}"):
        read(forged, TRUST)
    assert timing_of(read(forged, Trust.of(stranger.public)).manifest.timings).median_us == 0.1


def test_the_manifests_own_key_is_never_trusted() -> None:
    with pytest.raises(UntrustedArtifact):
        read(ARTIFACT, Trust.of())
    stranger = Signer.generate()
    claims_ours = members() | signed(members()["manifest.json"], stranger)
    signature = json.loads(claims_ours["signature.json"]) | {"key": SIGNER.public}
    claims_ours["signature.json"] = json.dumps(signature, indent=1).encode() + b"\n"
    with pytest.raises(CorruptArtifact, match="changed after signing"):
        read(packages._write(claims_ours), TRUST)


def replaced(**changes: bytes | None) -> Edit:
    def edit(actual: dict[str, bytes]) -> None:
        for name, content in changes.items():
            name = name.replace("__", ".")
            if content is None:
                del actual[name]
            else:
                actual[name] = content

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (replaced(extra__txt=b"hello"), "holds extra.txt"),
        (replaced(kernel__so=None), "lacks kernel.so"),
        (replaced(module__py=None), "lacks module.py"),
        (replaced(manifest__json=None), "lacks manifest.json"),
        (replaced(signature__json=None), "lacks signature.json"),
        (
            replaced(kernel__so=rows_binary(Gemm(7, 9, 6, dtype="f32", align=4))),
            "kernel.so of the artifact is not the one",
        ),
        (replaced(module__py=b"# other\n"), "module.py of the artifact is not the one"),
        (replaced(manifest__json=b"{}"), "changed after signing"),
    ],
)
def test_members_other_than_the_manifests_are_refused(edit: Edit, words: str) -> None:
    parts = members()
    edit(parts)
    with pytest.raises(CorruptArtifact, match=words):
        read(packages._write(parts), TRUST)


def zipped(*entries: tuple[zipfile.ZipInfo | str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The sample's members with more behind them, as any ZIP tool would write them."""
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in (*members().items(), *entries):
            archive.writestr(name, content)
    return out.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zipped(("../../etc/passwd", b"")), "not a plain file name"),
        (zipped(("/etc/passwd", b"")), "not a plain file name"),
        (zipped(("folder/kernel.so", b"")), "not a plain file name"),
        (zipped(("folder/", b"")), "not a plain file name"),
        (zipped(("..", b"")), "not a plain file name"),
        (zipped(("kernel.so", b"second")), "kernel.so occurs twice"),
        (zipped(("manifest.json", b"{}")), "manifest.json occurs twice"),
        (zipped((link("more"), b"/etc/passwd")), "is a link"),
        (zipped(("bomb", bytes(50_000_000)), compression=zipfile.ZIP_DEFLATED), "compressed"),
        (zipped(), "ZIP headers are not those that tirgemm writes"),
        (b"PK nothing of the kind", "damaged or not a .tirgemm"),
        (b"", "damaged or not a .tirgemm"),
        (ARTIFACT + b"\0", "ZIP headers"),
        (b"#!/bin/sh\n" + ARTIFACT, "ZIP headers"),
    ],
)
def test_a_zip_that_pack_does_not_write_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(CorruptArtifact, match=words):
        read(data, TRUST)


def test_an_artifact_over_the_limit_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_BYTES", len(ARTIFACT) - 1)
    with pytest.raises(CorruptArtifact, match="the limit is"):
        read(ARTIFACT, TRUST)
    path = tmp_path / "large.tirgemm"
    path.write_bytes(ARTIFACT)
    with pytest.raises(CorruptArtifact, match="has more than"):
        read(path, TRUST)


def test_an_artifact_of_the_first_format_is_read_and_says_neither_regime_nor_role() -> None:
    def age(manifest: dict[str, Any]) -> None:
        del manifest["regime"], manifest["role"]
        manifest["format"] = 1

    manifest = read(edited(age), TRUST).manifest
    assert (manifest.gemm, manifest.regime, manifest.role) == (GEMM, None, None)


def test_only_what_an_older_reader_does_not_know_has_a_newer_format() -> None:
    gemm = GEMM.with_(m=Range(1, 65))

    def format_of(side: Dim) -> int:
        box = TensorMap("a", "f32", (gemm.k, M), (20,), (8, side), (1, 1))
        launch = Launch(tensor_args(gemm), (), (KernelLaunch("main", (box,)),))
        cuda = {"device": named_device("sm_90a"), "launch": launch, "binary": fake_cubin(), "binary_format": "cubin"}
        manifest = read(packed(gemm, **cuda), TRUST).manifest
        assert manifest.launch == launch
        return int(manifest.data["format"])

    assert (format_of(64), format_of(minimum(64, M))) == (2, 4)


def without(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        del manifest[path[-1]]

    return change


def with_value(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        manifest[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (with_value(8, "format"), IncompatibleArtifact, "format 8; this tirgemm .* reads up to 7: install a newer one"),
        (with_value(0, "format"), CorruptArtifact, "format 0 is unknown"),
        (with_value("1", "format"), CorruptArtifact, "format '1' is unknown"),
        (with_value(True, "format"), CorruptArtifact, "format True is unknown"),
        (without("format"), CorruptArtifact, "malformed"),
        (without("kernel", "launch"), CorruptArtifact, "malformed"),
        (without("certificate"), CorruptArtifact, "its fields are"),
        (with_value(1, "more"), CorruptArtifact, "its fields are"),
        (with_value(1, "format"), CorruptArtifact, "its fields are"),
        (without("role"), CorruptArtifact, "its fields are"),
        (with_value("sustained", "regime"), CorruptArtifact, "role None"),
        (with_value(["tuned"], "role"), CorruptArtifact, "malformed"),
        (with_value("-3x4x5", "kernel", "gemm"), CorruptArtifact, "malformed"),
        (with_value("8x9x5:f32", "kernel", "gemm"), CorruptArtifact, "not those of its gemm"),
        (with_value([], "kernel", "launch", "kernels"), CorruptArtifact, "has no kernel"),
        (with_value({}, "kernel", "sources"), CorruptArtifact, "does not name"),
        (with_value("kernel.cubin", "kernel", "binary", "name"), CorruptArtifact, "malformed"),
        (with_value("../../kernel.so", "kernel", "binary", "name"), CorruptArtifact, "malformed"),
        (with_value([], "timings"), CorruptArtifact, "not objects"),
    ],
)
def test_a_signed_manifest_that_makes_no_sense_is_refused(
    change: Callable[[dict[str, Any]], None], error: type[ArtifactError], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(edited(change), trust=TRUST)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b'{"format": 1}', b"[" * 100_000])
def test_a_signed_manifest_that_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptArtifact):
        read(packages._write(members() | signed(data)), TRUST)


def test_a_kernel_hash_that_is_not_the_kernels_is_refused() -> None:
    manifest = json.loads(members()["manifest.json"])
    manifest["kernel_sha256"] = "0" * 64
    with pytest.raises(CorruptArtifact, match="kernel_sha256 is not the hash"):
        read(packages._write(members() | signed(manifest)), TRUST)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_artifact_with_a_changed_byte_is_read(data: st.DataObject) -> None:
    mutated = bytearray(ARTIFACT)
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(mutated) - 1))
        mutated[where] ^= data.draw(st.integers(1, 255))
    if bytes(mutated) != ARTIFACT:
        with pytest.raises(ArtifactError):
            read(bytes(mutated), TRUST)


def test_no_change_to_headers_or_signature_is_read() -> None:
    """Every byte outside the contents, where random changes seldom fall, one after the other."""
    contents = {name: content for name, content in members().items() if name != "signature.json"}
    inside = bytearray(len(ARTIFACT))
    for content in contents.values():
        at = ARTIFACT.index(content)
        inside[at : at + len(content)] = b"\1" * len(content)
    positions = [at for at, skip in enumerate(inside) if not skip]
    assert len(positions) > 600
    for at in positions:
        for flip in (0x01, 0x80):
            mutated = bytearray(ARTIFACT)
            mutated[at] ^= flip
            with pytest.raises(ArtifactError):
                read(bytes(mutated), TRUST)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(ARTIFACT) - 1), st.binary(max_size=8))
def test_no_truncated_or_spliced_artifact_is_read(size: int, inserted: bytes) -> None:
    with pytest.raises(ArtifactError):
        read(ARTIFACT[:size], TRUST)
    if inserted:
        with pytest.raises(ArtifactError):
            read(ARTIFACT[:size] + inserted + ARTIFACT[size:], TRUST)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.tirgemm", tmp_path):
        with pytest.raises(InvalidRequest, match=str(path)):
            read(path, TRUST)
