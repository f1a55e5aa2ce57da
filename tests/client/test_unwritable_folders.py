"""A client whose folders for configuration and downloads cannot be written: it serves, and enforces what it learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.test_revocations import GEMM, SHAPE, URL, RotatingService, new_client
from tests.client.test_server_trust import far
from tests.helpers.command_line import own_folders
from tirgemm import Client
from tirgemm._client import server_trust
from tirgemm._user_folders import user_config
from tirgemm.artifact import Signer, private_file, read, revocations
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.artifact.revocations import KnownRevocations
from tirgemm.errors import RevokedArtifact, UntrustedArtifact


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RotatingService:
    own_folders(tmp_path, monkeypatch)
    service = RotatingService(tmp_path / "service")
    KnownServers.default().accept(URL, service.keys.public)
    return service


@pytest.fixture(autouse=True)
def of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (revocations, server_trust):
        monkeypatch.setattr(module, "_UNWRITTEN", {})


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the configuration can be written from now on."""
    replace = private_file.replace

    def refuse(path: Path, data: object) -> None:
        if not path.is_relative_to(user_config()):  # of the service
            assert isinstance(data, bytes)
            return replace(path, data)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(private_file, "replace", refuse)
    monkeypatch.setattr(private_file, "append", refuse)


def test_a_list_that_cannot_be_kept_is_enforced_and_told_once(
    fake: RotatingService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.keys.revoke("0" * 64, "an older one")
    shown = KnownRevocations.default().path(URL)
    with monkeypatch.context() as patch:
        forbid(patch)
        for _ in range(2):
            with new_client(fake) as client:
                assert client.kernel(SHAPE).gemm == GEMM
        (told,) = [record.getMessage() for record in caplog.records if "revoked" in record.getMessage()]
        assert f"known to this process alone, as {shown} is not written: [Errno 13] Permission denied" in told
        fake.keys.revoke(fake.sha256, "wrong for NaN")
        for options in ({}, {"offline": True}):
            with new_client(fake, **options) as client, pytest.raises(RevokedArtifact, match="wrong for NaN"):
                client.kernel(SHAPE)
            with pytest.raises(RevokedArtifact, match="wrong for NaN"):
                read(fake.served)
        fake.list_data = b"{}"
        with new_client(fake) as client, pytest.raises(UntrustedArtifact, match="is not signed"):
            client.kernel(SHAPE)
    assert not shown.exists()
    fake.list_data = None
    fake.keys.revoke("1" * 64)
    with new_client(fake) as client, pytest.raises(RevokedArtifact, match="wrong for NaN"):
        client.kernel(SHAPE)
    assert shown.exists()
    assert revocations._UNWRITTEN == {}


def test_a_new_key_that_cannot_be_remembered_is_trusted_by_the_client_that_learned_it(
    fake: RotatingService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = fake.keys.current.public
    fake.keys.rotate()
    fake.sign_again()
    forbid(monkeypatch)
    for _ in range(2):
        with new_client(fake) as client:
            assert client.kernel(SHAPE).gemm == GEMM
    assert KnownServers.default().keys(URL) == {old}
    told = [record.getMessage() for record in caplog.records if "this process alone" in record.getMessage()]
    assert len(told) == 2, "of the list and of the key, once"
    assert told[1].startswith("they are trusted by this process alone, as they cannot be remembered: [Errno 13]")


def test_the_users_own_service_serves_though_it_cannot_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folders(tmp_path, monkeypatch)
    forbid(monkeypatch)
    fake = far()
    monkeypatch.setattr(server_trust, "own_service_keys", lambda _url: frozenset({fake.signer.public}))
    with Client(URL, transport=fake) as client:
        assert client.kernel(SHAPE).gemm == GEMM
    assert KnownServers.default().entries() == ()


def test_a_key_that_could_not_be_remembered_is_with_the_next_one(
    fake: RotatingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for writable in (False, True):
        fake.keys.rotate()
        fake.sign_again()
        with monkeypatch.context() as patch:
            if not writable:
                forbid(patch)
            with new_client(fake) as client:
                assert client.kernel(SHAPE).gemm == GEMM
    assert KnownServers.default().keys(URL) == set(fake.keys.public)
    assert len(fake.keys.public) == 3


def test_a_key_that_could_not_be_remembered_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_folders(tmp_path, monkeypatch)
    fake = far()
    old = fake.signer.public
    with monkeypatch.context() as patch:
        forbid(patch)
        patch.setattr(server_trust, "own_service_keys", lambda _url: frozenset({old}))
        with Client(URL, transport=fake) as client:
            client.check_server()
            assert old in client.trust.keys
    fake.signer = Signer.generate()
    with Client(URL, transport=fake) as client:
        client.trust_server(fake.signer.public, replace=True)
        assert client.trust.keys == {fake.signer.public}


def test_the_users_own_service_that_signs_with_another_key_is_remembered_without_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folders(tmp_path, monkeypatch)
    fake = far()
    monkeypatch.setattr(server_trust, "own_service_keys", lambda _url: frozenset({fake.signer.public}))
    with Client(URL, transport=fake) as client:
        with monkeypatch.context() as patch:
            forbid(patch)
            client.check_server()
        fake.signer = Signer.generate()
        client.check_server()
        assert client.trust.keys == {fake.signer.public}


def test_a_download_folder_that_cannot_be_looked_into_only_warns(
    fake: RotatingService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_client(fake, cache_dir=tmp_path / ("x" * 300)) as client:
        assert client.kernel(SHAPE).gemm == GEMM
    assert "is not kept in the cache: [Errno 36] File name too long" in caplog.text
