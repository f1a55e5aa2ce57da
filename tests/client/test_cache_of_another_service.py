"""What a client makes of kernels in its cache that another service gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.test_client_offline import GEMM, URL, filled
from tests.helpers.artifact_samples import SIGNER
from tests.helpers.fake_service import FakeService
from tirgemm import Client
from tirgemm.artifact import Signer, manifest
from tirgemm.errors import NotCached

HERE = "http://here.test"


@pytest.fixture
def fake(tmp_path: Path) -> FakeService:
    """A service whose kernel of GEMM is in the cache, given under another address than HERE."""
    service = FakeService()
    service.answer = service.ready
    filled(service, tmp_path)
    return service


def client(fake: FakeService, folder: Path, **options: Any) -> Client:
    usual: dict[str, Any] = {"trust": SIGNER.public, "cache_dir": folder, "patience": 0.0, "transport": fake}
    return Client(HERE, **usual | options)


def test_an_artifact_that_this_version_cannot_read_is_as_good_as_absent(
    fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(manifest, "FORMAT", 1)
        with client(fake, tmp_path) as actual:
            assert actual.document(GEMM) == fake.kernels["70ed"], "the service is asked"
        with client(fake, tmp_path, offline=True) as actual:
            assert actual.cached(GEMM) is None
            with pytest.raises(NotCached, match=f"from {URL} alone, .* .the artifact has format"):
                actual.kernel(GEMM)
    with client(fake, tmp_path, offline=True) as actual:
        assert actual.kernel(GEMM).gemm == GEMM


def test_offline_who_signed_a_kernel_is_told_where_nobody_trusts_it(fake: FakeService, tmp_path: Path) -> None:
    with client(fake, tmp_path, offline=True, trust=Signer.generate().public) as actual:
        with pytest.raises(NotCached, match=f"from {URL} alone, .* .the artifact is signed by ed25519") as refused:
            actual.kernel(GEMM)
        assert SIGNER.public in str(refused.value)


def test_offline_only_a_kernel_whose_artifact_is_there_is_named(fake: FakeService, tmp_path: Path) -> None:
    with client(fake, tmp_path, offline=True, trust=Signer.generate().public) as actual:
        actual.index.put(GEMM, fake.kernels["70ed"] | {"artifact": {"sha256": "0" * 64}}, HERE)
        with pytest.raises(NotCached, match=f"from {URL} alone"):
            actual.kernel(GEMM)
        for file in tmp_path.glob("*.tirgemm"):
            file.unlink()
        with pytest.raises(NotCached, match=r"no kernel for .* is in the cache"):
            actual.kernel(GEMM)


@pytest.mark.parametrize(
    ("differs", "wish"),
    [
        ({"role": "unverified"}, {"verify": False}),
        ({"other_device": "cuda:sm_90a:nvidia-h200:132"}, {"other_devices": True}),
    ],
)
def test_offline_a_kernel_that_is_taken_only_on_demand_is_named_on_demand(
    fake: FakeService, tmp_path: Path, differs: dict[str, Any], wish: dict[str, Any]
) -> None:
    document = fake.kernels["70ed"]
    sha256 = document["artifact"]["sha256"]
    with client(fake, tmp_path / "only", offline=True, trust=Signer.generate().public) as actual:
        actual.cache.put(sha256, fake.blobs[sha256])
        actual.index.put(GEMM, document | differs, URL)
        with pytest.raises(NotCached, match=f"from {URL} alone"):
            actual.kernel(GEMM, **wish)
        with pytest.raises(NotCached, match=r"no kernel for .* is in the cache"):
            actual.kernel(GEMM)
