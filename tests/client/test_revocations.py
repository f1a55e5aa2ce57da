"""Rotated keys and revocation lists: what a client accepts of a service, what it refuses, and which lists."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.helpers.artifact_samples import certified
from tests.helpers.command_line import own_folders, runner
from tests.helpers.fake_service import FakeService
from tirgemm import Client, Gemm
from tirgemm._client import server_trust
from tirgemm.artifact import Signer, Trust, read
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.artifact.revocations import MAX_BYTES, KnownRevocations, RevocationList
from tirgemm.artifact.signing_keys import LIST_FILE, SigningKeys
from tirgemm.errors import CorruptArtifact, InvalidRequest, RevokedArtifact, UntrustedArtifact

URL = "http://gpu.example:8000"
SHAPE = "33x17x19:f32:nt"
GEMM = Gemm.parse(SHAPE)


class RotatingService(FakeService):
    """A service on another machine whose keys and revocations are those of a data folder; ``list_data`` is shown in
    place of its list, a status in place of any answer."""

    def __init__(self, folder: Path) -> None:
        self.keys = SigningKeys(folder)
        super().__init__(signer=self.keys.current)
        self.answer = self.ready
        self.list_data: bytes | int | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/keys":
            entries = [{"algorithm": "ed25519", "key": key} for key in self.keys.public]
            return httpx.Response(200, json={"keys": entries})
        if request.url.path != "/v1/revocations":
            return super().handle_request(request)
        self.requests.append(request)
        if isinstance(self.list_data, int):
            return httpx.Response(self.list_data, json={})
        file = self.keys.folder / LIST_FILE
        data = self.list_data if self.list_data is not None else file.read_bytes() if file.exists() else None
        if data is None:
            return httpx.Response(404, json={"code": "no_revocations"})
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            return httpx.Response(304, headers={"etag": tag})
        return httpx.Response(200, content=data, headers={"etag": tag})

    def sign_again(self) -> None:
        """Kernels of the current key in place of those that are served."""
        self.signer = self.keys.current
        self.kernels = {name: self._document(name, document["role"]) for name, document in self.kernels.items()}

    @property
    def served(self) -> bytes:
        return self.blobs[self.sha256]

    @property
    def sha256(self) -> str:
        return str(self.kernels["70ed"]["artifact"]["sha256"])

    def lists(self) -> int:
        return len(self.sent("GET", "/v1/revocations"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_folders(tmp_path, monkeypatch)


@pytest.fixture
def fake(tmp_path: Path) -> RotatingService:
    service = RotatingService(tmp_path / "service")
    KnownServers.default().accept(URL, service.keys.public)
    return service


@pytest.fixture
def client(fake: RotatingService) -> Iterator[Client]:
    with new_client(fake) as actual:
        yield actual


def new_client(fake: RotatingService, **options: Any) -> Client:
    return Client(URL, patience=0.01, transport=fake, **options)


def test_a_key_for_which_the_accepted_one_vouches_is_accepted_and_remembered(
    fake: RotatingService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    old = fake.keys.current.public
    before = client.package(client.document(SHAPE), GEMM)
    fake.keys.rotate()
    fake.sign_again()
    with new_client(fake) as fresh:
        assert fresh.kernel(SHAPE)
    assert f"signs with a new key, {fake.keys.current.public}" in caplog.text
    assert KnownServers.default().keys(URL) == {old, fake.keys.current.public}
    assert read(before, Trust.default()).key == old, "what the old key signed stays valid"


@pytest.mark.usefixtures("fake")
def test_a_new_key_that_nobody_vouches_for_is_refused_as_ever(tmp_path: Path) -> None:
    stranger = RotatingService(tmp_path / "stranger")
    stranger.keys.rotate()
    with new_client(stranger) as actual, pytest.raises(UntrustedArtifact, match="HAS CHANGED"):
        actual.kernel(SHAPE)


def test_a_revoked_artifact_is_refused_from_the_service_the_cache_and_offline(
    fake: RotatingService, client: Client, tmp_path: Path
) -> None:
    assert client.kernel(SHAPE)
    file = tmp_path / "kept.tirgemm"
    file.write_bytes(fake.served)
    fake.keys.revoke(fake.sha256, "wrong for NaN")
    assert client.kernel(SHAPE), "a list holds for a minute"
    for options in ({}, {"offline": True}):
        with new_client(fake, **options) as fresh, pytest.raises(RevokedArtifact, match="revoked: wrong for NaN"):
            fresh.kernel(SHAPE)
    fake.list_data = 503
    with new_client(fake) as fresh, pytest.raises(RevokedArtifact, match=fake.sha256):
        fresh.kernel(SHAPE)
    with pytest.raises(RevokedArtifact, match="wrong for NaN"):
        read(file)


def test_a_revoked_key_is_refused_and_the_new_one_goes_on(fake: RotatingService, client: Client) -> None:
    old, data = fake.keys.current.public, fake.served
    assert client.kernel(SHAPE)
    fake.keys.rotate()
    with new_client(fake) as fresh:
        assert fresh.kernel(SHAPE)
    fake.keys.revoke(old, "it leaked")
    with (
        new_client(fake) as fresh,
        pytest.raises(RevokedArtifact, match=re.escape(f"the key {old} was revoked: it leaked")),
    ):
        fresh.kernel(SHAPE)
    with pytest.raises(RevokedArtifact, match="it leaked"):
        read(data, Trust.of(old))
    fake.sign_again()
    with new_client(fake) as fresh:
        assert fresh.kernel(SHAPE)


def test_a_list_is_asked_for_once_a_minute_and_by_its_tag(
    fake: RotatingService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.keys.revoke("0" * 64)
    for _ in range(3):
        client.kernel(SHAPE)
    assert fake.lists() == 1
    with new_client(fake) as fresh:
        fresh.kernel(SHAPE)
    (_, again) = fake.sent("GET", "/v1/revocations")
    known = KnownRevocations.default().known(URL)
    assert known is not None
    assert again.headers["if-none-match"] == f'"{hashlib.sha256(known).hexdigest()}"'
    monkeypatch.setattr(server_trust, "REVOCATION_SECONDS", 0.0)
    client.kernel(SHAPE)
    assert fake.lists() >= 3


def altered(data: bytes, **changes: Any) -> bytes:
    document = json.loads(data)
    text = json.loads(document["list"]) | changes
    return json.dumps(document | {"list": json.dumps(text)}).encode()


def test_a_list_that_is_not_to_be_believed_is_refused_and_the_known_one_holds(
    fake: RotatingService, client: Client
) -> None:
    assert client.kernel(SHAPE), "it is in the cache"
    fake.keys.revoke(fake.sha256, "the first")
    older = (fake.keys.folder / LIST_FILE).read_bytes()
    fake.keys.revoke("0" * 64)
    newest = (fake.keys.folder / LIST_FILE).read_bytes()
    believed = RevocationList.read(newest, fake.keys.public)
    stranger = Signer.generate()
    with new_client(fake) as fresh, pytest.raises(RevokedArtifact):
        fresh.kernel(SHAPE)
    hostile: dict[bytes, tuple[type[Exception], str]] = {
        older: (UntrustedArtifact, "shows list [0-9]+ .* has shown list [0-9]+ before"),
        replace(believed, issued_at="now").signed([fake.keys.current]): (UntrustedArtifact, "shows list [0-9]+ "),
        replace(believed, number=believed.number + 9).signed([stranger]): (
            UntrustedArtifact,
            "by no key that you trust",
        ),
        replace(believed, number=believed.number + 9).signed([]): (UntrustedArtifact, "signed by nobody"),
        altered(newest, number=2**40, revoked_artifacts={}): (UntrustedArtifact, "by no key that you trust"),
        json.dumps({"list": json.loads(newest)["list"]}).encode(): (UntrustedArtifact, "is not signed"),
        b"[]": (UntrustedArtifact, "no JSON object"),
        b"[" * 100_000: (UntrustedArtifact, "no JSON"),
        b"\xff\xfe": (UntrustedArtifact, "no JSON"),
        b" " * (MAX_BYTES + 1): (CorruptArtifact, f"over {MAX_BYTES}|more than {MAX_BYTES}"),
        replace(believed, number=-3).signed([fake.keys.current]): (UntrustedArtifact, "a number from 1"),
        replace(believed, number=believed.number + 9, keys=("x",)).signed([fake.keys.current]): (
            UntrustedArtifact,
            "public keys",
        ),
        replace(believed, number=believed.number + 9, revoked_keys=cast(Any, ["x"])).signed([fake.keys.current]): (
            UntrustedArtifact,
            "an object",
        ),
    }
    for data, (error, words) in hostile.items():
        fake.list_data = data
        with new_client(fake) as fresh, pytest.raises(error, match=words):
            fresh.kernel(SHAPE)
        assert KnownRevocations.default().known(URL) == newest
    with new_client(fake, offline=True) as fresh, pytest.raises(RevokedArtifact, match="the first"):
        fresh.kernel(SHAPE)


def test_whoever_stole_a_revoked_key_signs_no_list_with_it(fake: RotatingService, client: Client) -> None:
    stolen, mine = fake.keys.current, Signer.generate()
    assert client.kernel(SHAPE)
    fake.keys.rotate()
    fake.sign_again()
    with new_client(fake) as fresh:
        assert fresh.kernel(SHAPE), "the new key is accepted"
    fake.keys.revoke(stolen.public, "it leaked")
    with new_client(fake) as fresh:
        assert fresh.kernel(SHAPE)
    believed = KnownRevocations.default().known(URL)
    fake.list_data = RevocationList(2**40, "now", (stolen.public, mine.public)).signed([stolen, mine])
    with new_client(fake) as fresh:
        for _ in range(2):
            with pytest.raises(UntrustedArtifact, match="by no key that you trust"):
                fresh.kernel(SHAPE)
    assert KnownRevocations.default().known(URL) == believed
    assert mine.public not in KnownServers.default().keys(URL)


def test_a_callers_own_trust_takes_no_new_key_and_heeds_the_list_of_a_key_that_it_has(
    fake: RotatingService, caplog: pytest.LogCaptureFixture
) -> None:
    old = fake.keys.current.public
    fake.keys.rotate()
    with new_client(fake, trust=old) as given:
        assert given.kernel(SHAPE)
        assert given.trust.keys == {old}
    fake.keys.revoke(fake.sha256)
    with new_client(fake, trust=old) as given, pytest.raises(RevokedArtifact):
        given.kernel(SHAPE)
    other = Signer.generate()
    data = certified(GEMM, signer=other)
    fake.blobs[hashlib.sha256(data).hexdigest()] = data
    fake.list_data = RevocationList(2**40, "now", (other.public,)).signed([Signer.generate()])
    with new_client(fake, trust=other.public) as given:
        given.package(fake.kernels["70ed"] | {"artifact": {"sha256": hashlib.sha256(data).hexdigest()}}, GEMM)
    assert "by a list that no key you gave has signed" in caplog.text


def test_the_commands_rotate_and_revoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = runner(capsys, "signing")
    code, _, err = call("list", "--data", tmp_path / "none")
    assert (code, "holds no signing key" in err) == (2, True)
    assert not (tmp_path / "none").exists()
    folder = tmp_path / "service"
    first = SigningKeys(folder).current.public
    assert json.loads(call("list", "--data", folder, "--json")[1]) == {"keys": [first], "revoked": {}, "number": 0}
    second, former = json.loads(call("rotate", "--data", folder, "--json")[1])["keys"]
    assert (former, second != first) == (first, True)
    code, _, err = call("revoke", second, "--data", folder)
    assert (code, "rotate it first" in err) == (2, True)
    code, _, err = call("revoke", "nonsense", "--data", folder)
    assert (code, "not a public key" in err) == (2, True)
    shown = call("revoke", first, "--reason", "it leaked", "--data", folder)[1]
    assert (f"{second} signs" in shown, f"{first} is revoked: it leaked" in shown) == (True, True)
    keys = SigningKeys(folder)
    assert (keys.public, keys.listed and keys.listed.keys) == ((second,), (second,))
    assert [path.name for path in folder.glob("signing*")] == ["signing.key"]
    with (folder / "server.lock").open("w") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, err = call("rotate", "--data", folder)
    assert (code, "in use" in err) == (1, True)


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the block with Killed in place of the file that is linked, replaced or deleted as number ``step``."""
    count = itertools.count()

    def counting(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*paths: Any, **options: Any) -> None:
            is_draft = len(paths) == 1 and Path(paths[0]).name.startswith(".")  # its end is no step
            if not is_draft and next(count) == step:
                raise Killed
            change(*paths, **options)

        return changed

    with monkeypatch.context() as patch:
        for owner, name in ((os, "link"), (os, "replace"), (Path, "unlink")):
            patch.setattr(owner, name, counting(getattr(owner, name)))
        yield


def vouched_for(folder: Path, trusted: str) -> bool:
    """Whether a client that trusts a key of a folder accepts what the folder's service signs from now on."""
    current, file = SigningKeys(folder).current.public, folder / LIST_FILE
    if not file.exists():
        return current == trusted
    # The service reads the list by its own key, the client by the one that it knows.
    return current in RevocationList.read(file.read_bytes(), [current]).keys and current in (
        trusted,
        *RevocationList.read(file.read_bytes(), [trusted]).keys,
    )


def test_a_rotation_that_dies_anywhere_leaves_a_service_and_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in itertools.count():
        folder = tmp_path / str(step)
        first = SigningKeys(folder).current.public
        try:
            with killed_at(step, monkeypatch):
                SigningKeys(folder).rotate()
            break
        except Killed:
            assert vouched_for(folder, first)
        keys = SigningKeys(folder)
        assert set(keys.public) == {first, keys.current.public}
        keys.rotate()
        again = SigningKeys(folder)
        assert vouched_for(folder, first)
        assert again.current.public != first
        assert again.public[-1] == first
        assert len(again.public) == len(set(again.public))
        names = sorted(path.name for path in folder.iterdir())
        assert names == [LIST_FILE, "signing.key", *(f"signing.key.{n}" for n in range(1, len(again.public)))]
    assert step == 5, "a key that waits, a list, a former key, the current one, and the waiting one's end"


def test_a_revocation_that_dies_anywhere_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in itertools.count():
        folder = tmp_path / str(step)
        first = SigningKeys(folder).current.public
        SigningKeys(folder).rotate()
        try:
            with killed_at(step, monkeypatch):
                SigningKeys(folder).revoke(first)
            break
        except Killed:
            keys = SigningKeys(folder)
        assert keys.current.public in keys.public
        revoked = keys.listed is not None and first in keys.listed.revoked_keys
        assert revoked is (first not in keys.public), "it is either valid or revoked"
        keys.revoke(first)
        assert SigningKeys(folder).public == (keys.current.public,)
        assert not (folder / "signing.key.1").exists()
    assert step == 2, "a list, and the key's end"


def test_a_list_grows_no_larger_than_clients_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirgemm.artifact.signing_keys.MAX_BYTES", 600)
    keys = SigningKeys(tmp_path)
    keys.revoke("0" * 64)
    before = (tmp_path / LIST_FILE).read_bytes()
    with pytest.raises(InvalidRequest, match="the limit is 600"):
        keys.revoke("1" * 64, "x" * 200)
    assert (tmp_path / LIST_FILE).read_bytes() == before
    with pytest.raises(InvalidRequest, match="printable"):
        keys.revoke("1" * 64, "\x1b[31m")
