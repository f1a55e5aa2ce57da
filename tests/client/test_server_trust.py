"""Trust on first use: whose key is accepted by itself, whose is refused, and that it is compared before any work."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tirgemm
from tests.helpers.fake_service import FakeService
from tests.helpers.loopback_service import listening, served
from tests.waiting import PATIENCE_S
from tirgemm import Client
from tirgemm._client import own_service
from tirgemm.artifact import Signer, Trust
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.errors import UntrustedArtifact

FAR = "http://gpu.example:8000"
SHAPE: dict[str, Any] = {"m": 33, "n": 17, "k": 19, "dtype": "f32"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[FakeService, str]]:
    """A service of this user on this machine, whose data folder is not the user's default one, and its address."""
    with served(tmp_path / "elsewhere") as signer:
        fake = FakeService(signer=signer)
        fake.answer = fake.ready
        with listening(fake) as url:
            yield fake, url


def far(signer: Signer | None = None) -> FakeService:
    """A service on another machine."""
    fake = FakeService(signer=signer or Signer.generate())
    fake.answer = fake.ready
    return fake


def client(url: str, fake: FakeService | None = None, **options: Any) -> Client:
    return Client(url, cache_dir=os.environ["XDG_CACHE_HOME"], patience=PATIENCE_S, transport=fake, **options)


def asked(fake: FakeService) -> bool:
    return bool(fake.sent("POST", "/v1/kernels"))


def test_the_users_own_service_is_accepted_said_and_remembered(
    own: tuple[FakeService, str], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake, url = own
    kernel = client(url).kernel(**SHAPE)
    assert kernel.gemm == fake.gemm
    (said,) = [record.getMessage() for record in caplog.records if record.name == "tirgemm.client"]
    assert said == f"trusting the key of your own service at {url}: {fake.signer.public}"
    assert KnownServers.default().keys(url) == {fake.signer.public}
    assert tirgemm.load(kernel.save(home / "k.tirgemm")).gemm == fake.gemm, "what came from it can be loaded later"
    caplog.clear()
    client(url).kernel(**SHAPE)
    assert not caplog.records, "it is said once"


def test_another_users_service_on_this_machine_is_refused_before_any_work(
    own: tuple[FakeService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = own
    real = own_service.listeners
    monkeypatch.setattr(own_service, "listeners", lambda port: {i: uid + 1 for i, uid in real(port).items()})
    with pytest.raises(UntrustedArtifact, match=re.escape(f"tirgemm trust add {url} {fake.signer.public}")):
        client(url).kernel(**SHAPE)
    assert not asked(fake)
    assert not KnownServers.default().entries()


def test_a_port_that_another_user_listens_on_too_is_refused(
    own: tuple[FakeService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = own
    real = own_service.listeners
    monkeypatch.setattr(own_service, "listeners", lambda port: real(port) | {1: os.geteuid() + 1})
    with pytest.raises(UntrustedArtifact):
        client(url).kernel(**SHAPE)
    assert not asked(fake)


def test_a_tunnel_of_the_users_to_somebody_elses_service_is_refused(home: Path) -> None:
    stranger = far()
    with listening(stranger) as url:
        with pytest.raises(UntrustedArtifact, match="which you have not accepted"):
            client(url).kernel(**SHAPE)
        with served(home / "elsewhere"), pytest.raises(UntrustedArtifact, match="which you have not accepted"):
            client(url).kernel(**SHAPE)
    assert not asked(stranger)


def test_a_server_whose_key_others_can_read_is_not_the_users_own(own: tuple[FakeService, str], home: Path) -> None:
    fake, url = own
    (home / "elsewhere" / "signing.key").chmod(0o644)
    with pytest.raises(UntrustedArtifact):
        client(url).kernel(**SHAPE)
    assert not asked(fake)


def test_a_service_elsewhere_is_refused_before_any_work_until_its_key_is_accepted() -> None:
    fake = far()
    with pytest.raises(UntrustedArtifact, match=re.escape(f"tirgemm trust add {FAR} {fake.signer.public}")):
        client(FAR, fake).kernel(**SHAPE)
    assert not asked(fake)
    assert client(FAR + "/", fake).trust_server(fake.signer.public) == (fake.signer.public,)
    assert client(FAR, fake).kernel(**SHAPE).gemm == fake.gemm


def test_a_key_that_is_trusted_by_itself_needs_no_known_server() -> None:
    fake = far()
    Trust.default().add(fake.signer.public)
    assert client(FAR, fake).kernel(**SHAPE).gemm == fake.gemm
    assert not KnownServers.default().entries()


def test_a_key_that_was_accepted_for_one_server_is_not_accepted_from_another() -> None:
    fake = far()
    client(FAR, fake).trust_server()
    with pytest.raises(UntrustedArtifact, match="which you have not accepted"):
        client("http://other.example", fake).kernel(**SHAPE)
    assert len(fake.sent("POST", "/v1/kernels")) == 0


def test_a_changed_key_is_refused_loudly_with_both_keys_and_the_line_that_replaces_it() -> None:
    before, after = far(), far()
    client(FAR, before).trust_server()
    line = f"tirgemm trust add {FAR} {after.signer.public} --replace"
    with pytest.raises(UntrustedArtifact, match=re.escape(line)) as error:
        client(FAR, after).kernel(**SHAPE)
    assert "HAS CHANGED" in str(error.value)
    assert before.signer.public in str(error.value)
    assert not asked(after)
    for keys in ((), (after.signer.public,)):
        with pytest.raises(UntrustedArtifact, match="HAS CHANGED"):
            client(FAR, after).trust_server(*keys)
    client(FAR, after).trust_server(after.signer.public, replace=True)
    assert client(FAR, after).kernel(**SHAPE).gemm == after.gemm
    with pytest.raises(UntrustedArtifact, match="HAS CHANGED"):
        client(FAR, before).kernel(**SHAPE)


def test_a_changed_key_of_the_users_own_service_is_accepted_and_said(
    own: tuple[FakeService, str], caplog: pytest.LogCaptureFixture
) -> None:
    fake, url = own
    old = Signer.generate().public
    KnownServers.default().accept(url, [old])
    client(url).kernel(**SHAPE)
    assert f"{fake.signer.public} (until now {old})" in caplog.text
    assert KnownServers.default().keys(url) == {fake.signer.public}


def test_a_changed_key_of_another_users_service_on_this_machine_is_refused(
    own: tuple[FakeService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = own
    KnownServers.default().accept(url, [Signer.generate().public])
    monkeypatch.setattr(own_service, "listeners", lambda _port: {1: os.geteuid() + 1})
    with pytest.raises(UntrustedArtifact, match="HAS CHANGED"):
        client(url).kernel(**SHAPE)
    assert not asked(fake)


def test_a_client_that_lives_on_notices_that_the_key_has_changed() -> None:
    before, after = far(), far()
    service = _Switched(before)
    lasting = client(FAR, service)
    lasting.trust_server()
    lasting.kernel(**SHAPE)
    service.fake = after
    with pytest.raises(UntrustedArtifact, match="HAS CHANGED"):
        lasting.kernel(**SHAPE)


def test_a_kernel_that_was_signed_elsewhere_is_refused_with_its_own_key() -> None:
    fake, stranger = far(), far()
    fake.kernels, fake.blobs = stranger.kernels, stranger.blobs
    client(FAR, fake).trust_server()
    with pytest.raises(UntrustedArtifact, match=re.escape(f"tirgemm trust add {stranger.signer.public}")):
        client(FAR, fake).kernel(**SHAPE)
    Trust.default().add(stranger.signer.public)
    assert client(FAR, fake).kernel(**SHAPE).gemm == fake.gemm


def test_whom_a_caller_says_to_trust_is_all_that_is_trusted(own: tuple[FakeService, str]) -> None:
    fake, url = own
    with pytest.raises(UntrustedArtifact, match="keys given do not hold"):
        client(url, trust=Signer.generate().public).kernel(**SHAPE)
    assert client(url, trust=[]).submit(fake.gemm).kernel is not None, (
        "nothing is loaded, so that nobody need be trusted"
    )
    assert not KnownServers.default().entries()
    assert client(url, trust=fake.signer.public).kernel(**SHAPE).gemm == fake.gemm


def test_a_service_that_shows_no_key_is_refused() -> None:
    class Keyless(FakeService):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/keys":
                return httpx.Response(200, json={"keys": []})
            return super().handle_request(request)

    calls: list[Callable[[Client], object]] = [lambda c: c.kernel(**SHAPE), lambda c: c.trust_server()]
    for call in calls:
        with pytest.raises(UntrustedArtifact, match="shows no signing key"):
            call(client(FAR, Keyless()))


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_who_listens_on_a_port_is_read_from_the_kernel(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        port = listener.getsockname()[1]
        assert own_service.listeners(port) == {}, "bound is not listening"
        listener.listen()
        number = os.fstat(listener.fileno()).st_ino
        assert own_service.listeners(port) == {number: os.geteuid()}
    assert number not in own_service.listeners(port), "the port may be another's by now"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_only_this_machines_own_addresses_are_loopback(host: str, loopback: bool) -> None:
    assert own_service.is_loopback(host) is loopback


class _Switched(FakeService):
    """One address behind which another service appears."""

    def __init__(self, fake: FakeService) -> None:
        self.fake = fake

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.fake.handle_request(request)


def test_check_server_only_compares_and_does_so_at_every_call() -> None:
    fake = far()
    KnownServers.default().accept(FAR, [fake.signer.public])
    opened = client(FAR, fake)
    opened.check_server()
    fake.signer = Signer.generate()
    with pytest.raises(UntrustedArtifact, match=f"THE KEY OF {re.escape(FAR)} HAS CHANGED"):
        opened.check_server()
    assert {request.method for request in fake.requests} == {"GET"}
    assert {request.url.path for request in fake.requests} == {"/v1/keys", "/v1/revocations"}
    assert fake.signer.public not in KnownServers.default().keys(FAR)
    given = client(FAR, far(), trust=fake.signer.public)
    given.check_server()


def test_check_server_refuses_a_service_that_nobody_accepted() -> None:
    with pytest.raises(UntrustedArtifact, match="which you have not accepted"):
        client(FAR, far()).check_server()
    assert not KnownServers.default().entries()
