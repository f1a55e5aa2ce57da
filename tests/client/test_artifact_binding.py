"""Artifacts signed by a trusted key that are not what was asked for, or that nobody verified: refused unloaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, certified, cpu, fake_cubin, packed, packed_set
from tests.helpers.fake_service import EVENTS, FakeService
from tirgemm import Client, Gemm
from tirgemm.artifact import Trust, native, read
from tirgemm.artifact import package as packages
from tirgemm.errors import MismatchedArtifact, ServiceError, UnverifiedArtifact
from tirgemm.hardware import named_device

URL = "http://service.test"
GEMM = Gemm.parse("33x17x19:f32:nt")
TESTS = [{"name": "exact", "passed": True}]


@pytest.fixture
def fake() -> FakeService:
    service = FakeService()
    service.answer = service.ready
    return service


@pytest.fixture
def client(fake: FakeService, tmp_path: Path) -> Iterator[Client]:
    with Client(URL, trust=SIGNER.public, cache_dir=tmp_path, patience=0.1, transport=fake) as actual:
        yield actual


def serve(fake: FakeService, data: bytes, **members: Any) -> None:
    """Answer with the kernel document of ``data``, with ``members`` in place of its own."""
    sha256 = hashlib.sha256(data).hexdigest()
    fake.blobs[sha256] = data
    manifest = read(data, Trust.of(SIGNER.public)).manifest
    described = {name: getattr(manifest.device, name) for name in ("key", "name", "model", "arch")}
    document = fake.kernels["70ed"] | {"artifact": {"sha256": sha256, "bytes": len(data)}, "device": described}
    document |= {"regime": manifest.regime or "sustained", "role": manifest.role or "tuned"}
    fake.kernels["70ed"] = document | members


def refuse_to_load(*_: Any) -> None:
    raise AssertionError("an artifact that is refused must not reach the launcher")


def kernel_hash(data: bytes) -> str:
    return read(data, Trust.of(SIGNER.public)).manifest.kernel_sha256


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (None, "holds no certificate: nobody verified this build"),
        ({"passed": False, "tests": TESTS}, "did not pass"),
        ({"passed": True, "tests": [*TESTS, {"name": "normal", "passed": False}]}, "1 of its 2 tests failed"),
        ({"passed": True, "tests": []}, "names no tests"),
        ({"passed": True, "tests": TESTS, "kernel_sha256": "0" * 64}, "is of another kernel"),
        ({"passed": 1, "tests": TESTS}, "did not pass"),
    ],
)
def test_a_kernel_without_a_passed_certificate_is_refused_unless_it_is_asked_for(
    client: Client,
    fake: FakeService,
    monkeypatch: pytest.MonkeyPatch,
    certificate: dict[str, Any] | None,
    words: str,
) -> None:
    evidence = certificate and {"kernel_sha256": kernel_hash(packed(GEMM))} | certificate
    serve(fake, packed(GEMM, certificate=evidence, regime="sustained", role="tuned"))
    with monkeypatch.context() as patch:
        patch.setattr(native, "load", refuse_to_load)
        with pytest.raises(UnverifiedArtifact, match=rf"{words}.*; verify=False takes it all the same"):
            client.kernel(GEMM)
    assert client.cached(GEMM) is None
    assert client.kernel(GEMM, verify=False).gemm == GEMM


def test_a_build_that_nobody_ran_is_refused_unless_it_is_asked_for(client: Client, fake: FakeService) -> None:
    serve(fake, certified(GEMM, role="unverified"))
    with pytest.raises(UnverifiedArtifact, match="a build that nobody has run"):
        client.kernel(GEMM)
    assert client.kernel(GEMM, verify=False).manifest.role == "unverified"


@pytest.mark.parametrize("verify", [True, False])
def test_a_kernel_of_the_other_regime_is_refused(client: Client, fake: FakeService, verify: bool) -> None:
    serve(fake, certified(GEMM, regime="isolated"))
    with pytest.raises(MismatchedArtifact, match="request for regime sustained with a kernel of regime isolated"):
        client.kernel(GEMM, verify=verify)
    assert client.kernel(GEMM, regime="isolated").manifest.regime == "isolated"


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("asked", [None, "cpu"])
def test_a_cubin_is_no_answer_to_a_request_for_a_cpu(
    client: Client, fake: FakeService, asked: str | None, verify: bool
) -> None:
    target = named_device("sm_80")
    cubin: dict[str, Any] = {"device": target, "binary": fake_cubin(), "binary_format": "cubin"}
    serve(fake, certified(GEMM, **cubin))
    with pytest.raises(MismatchedArtifact, match=f"with a kernel for {target.key}"):
        client.kernel(GEMM, device=asked, verify=verify, check_device=False)
    document = fake.kernels["70ed"]
    for name in ("sm_80", target.key, "cuda:0", "cuda"):
        assert client.package(document, GEMM, device=name)
    with pytest.raises(MismatchedArtifact, match="for device sm_90a"):
        client.package(document, GEMM, device="sm_90a")


def test_another_class_of_cpu_is_refused_where_a_class_was_asked_for(client: Client, fake: FakeService) -> None:
    other = cpu().with_(model="Another CPU", uuid="", index=0, environment=())
    serve(fake, certified(GEMM, device=other))
    with pytest.raises(MismatchedArtifact, match=f"request for device {cpu().key} with a kernel for {other.key}"):
        client.kernel(GEMM)
    assert client.kernel(GEMM, device="cpu").device.key == other.key


@pytest.mark.parametrize(
    ("role", "members", "words"),
    [
        ("fallback", {"role": "tuned"}, "calls the role of a kernel 'tuned'; its artifact says 'fallback'"),
        ("fallback", {"role": None}, "calls the role of a kernel None"),
        ("tuned", {"regime": "isolated"}, "calls the regime of a kernel 'isolated'"),
        ("tuned", {"device": {"key": "cpu:other"}}, "calls the device of a kernel 'cpu:other'"),
        ("tuned", {"device": "cpu"}, "calls the device of a kernel None"),
    ],
)
def test_a_document_that_says_other_than_its_artifact_is_refused(
    client: Client, fake: FakeService, role: str, members: dict[str, Any], words: str
) -> None:
    serve(fake, certified(GEMM, role=role), **members)
    with pytest.raises(MismatchedArtifact, match=words):
        client.kernel(GEMM)


def test_the_default_is_no_answer_for_who_wants_a_tuned_kernel_unless_it_is_pinned(
    client: Client, fake: FakeService
) -> None:
    serve(fake, certified(GEMM, role="fallback"))
    searched: list[dict[str, Any]] = [{}, {"effort": "quick"}]
    for wanted in searched:
        with pytest.raises(MismatchedArtifact, match=f"a tuned kernel of {GEMM} with the default kernel, as where no "):
            client.kernel(GEMM, **wanted)
    unsearched: list[dict[str, Any]] = [{"wait": "fallback"}, {"effort": "none"}, {"wait": 30.0}, {"verify": False}]
    for wanted in unsearched:
        assert client.kernel(GEMM, **wanted).manifest.role == "fallback"
    serve(fake, certified(GEMM, role="fallback"), pinned=True)
    assert client.kernel(GEMM).manifest.role == "fallback"


def test_a_job_that_is_done_with_the_default_is_refused(client: Client, fake: FakeService) -> None:
    fake.answer = fake.pending
    fake.streams = [list(EVENTS)]
    serve(fake, certified(GEMM, role="fallback"))
    with pytest.raises(ServiceError, match="is done, but with the default kernel in place of a tuned one"):
        client.kernel(GEMM)


def test_effort_none_asks_for_no_more_than_the_default(client: Client, fake: FakeService) -> None:
    fake.answer = fake.pending
    fake.streams = [list(EVENTS)]
    fake.effort = "none"
    serve(fake, certified(GEMM, role="fallback"))
    assert client.document(GEMM, effort="none")["role"] == "fallback"


def test_the_first_format_signs_neither_regime_nor_role_and_is_refused(client: Client, fake: FakeService) -> None:
    package = read(certified(GEMM), Trust.of(SIGNER.public))
    manifest = {name: value for name, value in package.manifest.data.items() if name not in ("regime", "role")}
    text = json.dumps(manifest | {"format": 1}, indent=1).encode() + b"\n"
    signature = packages._signature(SIGNER.public, SIGNER.sign(text))
    sources = {name: content.encode() for name, content in package.sources.items()}
    members = {"manifest.json": text, "signature.json": signature, "kernel.so": package.binary, **sources}
    serve(fake, packages._write(members))
    with pytest.raises(UnverifiedArtifact, match="has format 1, in which regime and role are not signed; retune=True"):
        client.kernel(GEMM)
    assert client.kernel(GEMM, verify=False).gemm == GEMM
    assert package.manifest.data["format"] == 2


def test_every_kernel_of_a_set_needs_a_passed_certificate_of_its_own(client: Client, fake: FakeService) -> None:
    gemm, highs = Gemm.parse("1..33x17x19:f32:nt"), (8, 33)
    hashes = [
        member.kernel_sha256 for member in read(packed_set(gemm, highs), Trust.of(SIGNER.public)).manifest.members
    ]
    evidence = [{"kernel_sha256": sha256, "passed": True, "tests": TESTS} for sha256 in hashes]

    def served(*certificates: dict[str, Any] | None) -> None:
        members = {number: {"certificate": one} for number, one in enumerate(certificates)}
        serve(fake, packed_set(gemm, highs, members=members, regime="sustained", role="tuned"))

    for certificates in ((evidence[0], None), (evidence[0], evidence[0]), (None, evidence[1])):
        served(*certificates)
        with pytest.raises(UnverifiedArtifact, match=r"of its kernel for m = (1\.\.8|9\.\.33): .*; verify=False"):
            client.kernel(gemm)
    served(*evidence)
    kernel = client.kernel(gemm)
    assert (kernel.gemm, len(kernel.manifest.members)) == (gemm, 2)
    for other in ("1..32x17x19:f32:nt", "9..33x17x19:f32:nt", "33x17x19:f32:nt"):
        with pytest.raises(MismatchedArtifact, match=r"with a kernel for 1\.\.33x17x19"):
            client.kernel(other)
    with pytest.raises(MismatchedArtifact, match="request for regime isolated"):
        client.kernel(gemm, regime="isolated")


def test_what_is_cached_is_bound_as_what_is_downloaded(client: Client, fake: FakeService, tmp_path: Path) -> None:
    serve(fake, certified(GEMM, role="unverified"))
    client.kernel(GEMM, verify=False)
    with Client(URL, trust=SIGNER.public, cache_dir=tmp_path, offline=True, transport=fake) as offline:
        assert offline.kernel(GEMM, verify=False).manifest.role == "unverified"
        entry = next((tmp_path / "index").iterdir())
        entry.write_text(entry.read_text().replace('"role": "unverified"', '"role": "tuned"'))
        with pytest.raises(UnverifiedArtifact):
            offline.kernel(GEMM)
