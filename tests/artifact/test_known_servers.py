"""The files that say whom a user trusts: what they hold, what they refuse, and how entries come and go."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tirgemm.artifact import Signer, Trust, private_file
from tirgemm.artifact.known_servers import KnownServer, KnownServers, address
from tirgemm.artifact.revocations import KnownRevocations, RevocationList
from tirgemm.artifact.signing_keys import LIST_FILE, SigningKeys
from tirgemm.artifact.trust import own_key, own_keys
from tirgemm.errors import InvalidRequest, RevokedArtifact, UntrustedArtifact

ONE, TWO, THREE = (Signer.generate().public for _ in range(3))
URL = "http://gpu.example:8000"


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownServers:
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return KnownServers.default()


def test_a_key_is_known_for_its_own_address_alone(servers: KnownServers) -> None:
    servers.accept(URL, [ONE], "the lab's\nmachine")
    servers.accept("https://other.example", [TWO])
    assert servers.entries() == (
        KnownServer(URL, ONE, "the lab's machine"),
        KnownServer("https://other.example", TWO, ""),
    )
    assert servers.keys(URL) == {ONE}
    assert servers.keys("https://other.example") == {TWO}
    assert servers.keys("http://gpu.example:8001") == frozenset()
    assert stat.S_IMODE(servers.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("HTTP://GPU.example:8000/", URL),
        ("http://user:secret@gpu.example:8000", URL),
        ("http://gpu.example:80", "http://gpu.example"),
        ("https://gpu.example:443/", "https://gpu.example"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://gpu.example/behind/a/proxy/", "http://gpu.example/behind/a/proxy"),
    ],
)
def test_an_address_has_one_spelling_and_holds_no_password(written: str, same: str) -> None:
    assert address(written) == same
    assert address(same) == same


@pytest.mark.parametrize("text", ["", "gpu.example", "ftp://gpu.example", "http://", "http://a b", "http://a:port"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a URL"):
        address(text)


def test_a_replaced_key_is_gone_and_the_rest_of_the_file_stays(servers: KnownServers) -> None:
    servers.path.parent.mkdir(parents=True)
    servers.path.write_text(f"# by hand\n{URL} {ONE} old\n\nhttps://other.example {TWO}")
    servers.path.chmod(0o600)
    servers.accept(URL, [THREE])
    assert servers.path.read_text() == f"# by hand\n\nhttps://other.example {TWO}\n{URL} {THREE}\n"
    servers.accept(URL, [THREE])
    assert servers.path.read_text().count(THREE) == 1
    assert [entry.key for entry in servers.forget(URL + "/")] == [THREE]
    assert [entry.url for entry in servers.forget(TWO)] == ["https://other.example"]
    assert servers.path.read_text() == "# by hand\n\n"
    assert servers.forget(URL) == ()


def test_what_another_process_adds_while_the_file_is_replaced_stays(
    servers: KnownServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.accept(URL, [ONE])
    user = Trust.of_user().add(ONE)
    real = private_file.replace

    def meanwhile(change: Callable[[], object], replaces: Callable[[], object]) -> None:
        other = threading.Thread(target=change)

        def replace(path: Path, data: bytes) -> None:
            other.start()
            other.join(0.2)
            real(path, data)

        with monkeypatch.context() as patched:
            patched.setattr(private_file, "replace", replace)
            replaces()
        other.join()

    meanwhile(lambda: servers.accept("https://other.example", [TWO]), lambda: servers.accept(URL, [THREE]))
    meanwhile(lambda: servers.accept("https://third.example", [TWO]), lambda: servers.forget(URL))
    assert {entry.url for entry in servers.entries()} == {"https://other.example", "https://third.example"}
    meanwhile(lambda: user.add(TWO), lambda: user.remove(ONE))
    assert user.comments().keys() == {TWO}


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("data", [b'{"list": "{', b"{}", b'{"list": "{\\"format\\": 2}", "signatures": {}}'])
def test_a_list_of_revocations_that_cannot_be_read_is_named(data: bytes) -> None:
    known = KnownRevocations.default()
    path = known.path(URL)
    private_file.create(path, data)
    with pytest.raises(UntrustedArtifact) as refused:
        known.refuse("the key", ONE)
    assert str(refused.value).startswith(f"{path}: the list of revocations is ")
    assert str(refused.value).endswith("move it away, and the service is asked for it again")


def test_a_file_that_is_a_link_stays_one(servers: KnownServers, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles" / "known_servers"
    servers.path.parent.mkdir(parents=True)
    servers.path.symlink_to(target)
    servers.accept(URL, [ONE])
    servers.accept(URL, [TWO])
    assert servers.path.is_symlink()
    assert target.read_text() == f"{URL} {TWO}\n"


@pytest.mark.parametrize(
    "line", [ONE, "http://a", f"gpu.example {ONE}", f"{URL} ed25519:AAAA"], ids=["key", "url", "no url", "no key"]
)
def test_a_line_that_is_no_entry_is_named(servers: KnownServers, line: str) -> None:
    servers.path.parent.mkdir(parents=True)
    servers.path.write_text(f"# fine\n{line}\n")
    servers.path.chmod(0o600)
    with pytest.raises(InvalidRequest, match=f"{servers.path}, line 2"):
        servers.entries()


def test_a_file_that_others_may_write_is_refused(servers: KnownServers) -> None:
    servers.accept(URL, [ONE])
    servers.path.chmod(0o660)
    with pytest.raises(UntrustedArtifact, match="mode 660"):
        Trust.default()


def test_the_user_trusts_the_trust_file_the_servers_and_the_users_own_key(
    servers: KnownServers, tmp_path: Path
) -> None:
    Trust.default().add(ONE)
    servers.accept(URL, [TWO])
    own = Signer.load_or_create(tmp_path / "data" / "tirgemm" / "signing.key").public
    assert Trust.default().keys == {ONE, TWO, own}
    assert Trust.of_user().keys == {ONE, own}
    beside = Signer.load_or_create(tmp_path / "beside" / "signing.key").public
    assert Trust.default(tmp_path / "beside").keys == {ONE, TWO, own, beside}
    Trust.default().add(THREE)
    assert Trust.file(servers.path.with_name("trusted_keys")).keys == {ONE, THREE}, "only what was added is written"


def test_a_key_is_the_users_own_only_in_a_file_that_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert own_key(tmp_path) is None
    key = Signer.load_or_create(tmp_path / "signing.key").public
    assert own_key(tmp_path) == key
    (tmp_path / "signing.key").chmod(0o640)
    assert own_key(tmp_path) is None
    assert "chmod 600" in caplog.text
    (tmp_path / "signing.key").chmod(0o600)
    uid = (tmp_path / "signing.key").stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: uid + 1)
    assert own_key(tmp_path) is None


def test_the_former_keys_of_a_folder_are_those_that_its_current_key_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path))
    keys = SigningKeys(tmp_path)
    keys.rotate()
    keys.rotate()
    current, gone, kept = keys.public
    keys.revoke(gone)
    assert own_keys(tmp_path) == (current, kept)
    stranger = Signer.generate()
    (tmp_path / LIST_FILE).write_bytes(RevocationList(2**40, "now", (current, ONE), {TWO: ""}).signed([stranger]))
    assert own_keys(tmp_path) == (current,)
    assert "former signing keys are not trusted" in caplog.text
    with pytest.raises(RevokedArtifact, match=TWO.replace("+", r"\+")):
        KnownRevocations.default().refuse("the key", TWO)
    uid = tmp_path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: uid + 1)
    KnownRevocations.default().refuse("the key", TWO)  # another user's folder revokes nothing
    assert own_keys(tmp_path) == ()


def test_a_key_is_taken_out_of_the_trust_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trusted_keys"
    path.write_text(f"# who builds\n{ONE} the build machine\n{TWO}\n")
    path.chmod(0o600)
    trust = Trust.file(path)
    assert trust.comments() == {ONE: "the build machine", TWO: ""}
    assert trust.remove(ONE)
    assert not trust.remove(ONE)
    assert path.read_text() == f"# who builds\n{TWO}\n"
    assert not Trust.of(ONE).remove(ONE)
